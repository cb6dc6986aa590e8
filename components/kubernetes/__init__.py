"""The backend `kubernetes`: fleets are queues of a cluster that exists; their runs bring pods.

`account/` asks an API server, `planner.py` decides (pure), `plugin.py` serves resources to the engine where
the official plugin cannot be had. Start at `backend.py`.
"""
