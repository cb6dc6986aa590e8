"""The choice of a run's fleet and nodes: `choose.py` asks the nodes, `placement/` decides."""
