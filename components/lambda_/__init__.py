"""Lambda: single instances, and 1-Click Clusters that exist, over its REST API. `lambda` is a word of Python.

Start with `backend.py`. `account/` asks the account, `planner.py` decides, `plugin.py` serves the resources.
Nothing here but `resources.py` and `plugin.py` may import Pulumi.
"""
