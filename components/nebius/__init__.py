"""Nebius: InfiniBand clusters.

`account/` asks its API, `planner.py` decides (pure), `resources.py` registers the plan, `plugin.py` serves
its resources to the engine, `backend.py` puts them together: start there.
"""
