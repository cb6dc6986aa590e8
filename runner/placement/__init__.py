"""Which nodes a run goes to: `seats.py` asks the nodes, the rest decides. Start with `placement.py`."""
