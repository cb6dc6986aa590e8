"""The engine and what is done with it: find or install the Pulumi CLI, run the program, read its events and
state.

One stack per fleet. Start at `operations.py` (preview, up, down, refresh, drift); `program.py` is what both
`orch` and `pulumi up` by hand run. Nothing here prints: what happens is told through `operations.Listener`.
"""
