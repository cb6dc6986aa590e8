"""Crusoe: InfiniBand clusters over its REST API.

Start with `backend.py`. `account/` asks the project, `planner.py` decides, `plugin.py` serves the resources.
Nothing here but `resources.py` and `plugin.py` may import Pulumi.
"""
