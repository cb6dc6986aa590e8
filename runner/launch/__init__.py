"""From a task and a fleet to a run plan: placement, environment, launchers. Pure, but for `seats.py`."""
