"""RunPod: Instant Clusters and single pods, whose containers are the nodes.

`account/` asks its API, `planner.py` decides (pure), `resources.py` registers the plan, `plugin.py` serves
its resources to the engine, `backend.py` puts them together: start there.
"""
