"""Clouds compiled to Pulumi resources: one folder per backend.

`base.py` has the interface of a backend, `registry.py` finds them by folder. In a cloud's folder
`account/gather_facts.py` asks, `planner.py` decides (pure), `resources.py` registers what the plan says.
"""
