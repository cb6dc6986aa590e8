"""Shared file systems of AWS that are created with a fleet: who reaches them, and deleting what is left over.

`network_resources.py` makes them, as it makes the network that they are reached in.
"""
