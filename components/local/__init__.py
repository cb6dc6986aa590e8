"""The backend `local`: nodes are containers on this machine.

For rehearsal, tests and the first ten minutes.
"""
