"""The choice of nodes for a run, as pure functions of what is known of them. Start with `placement.py`."""
