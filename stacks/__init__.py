"""Fleets in the Pulumi engine: find or install its CLI, run the program, read its events and state.

One stack per fleet. Start at `operations.py` (preview, up, down, refresh, drift); `program.py` is the program
of `orch` and of `pulumi up` by hand. Nothing here prints: progress goes to a `pulumi.operation.Listener`.
"""
