"""Newcloud: single machines over its REST API.

Start with `backend.py`. `account/` asks the account, `planner.py` decides, `plugin.py` serves the resources.
Nothing here but `resources.py` and `plugin.py` may import Pulumi.
"""
