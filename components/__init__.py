"""Clouds compiled to Pulumi resources: one folder per backend.

`plan.py` decides (pure), `facts.py` asks, `resources.py` registers what the plan says. `backends.py` is the
table of those this build has. Adding a backend is adding a folder and a row.
"""
