"""Fleets in the Pulumi engine: find or install its CLI, run the program, read its events and state.

One stack per fleet. Start at `provisioning/operations.py` (preview, up, down, refresh, drift); `program.py`
is the program of `pulumi up` by hand. Nothing here prints: progress goes to a `pulumi.progress.Listener`.
Packages import one way; `pyproject.toml` has their order.
"""
