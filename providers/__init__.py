"""Pulumi providers hosted in Python.

`providers/orch` serves the project's own resources (keys, local networks and nodes). May import
`runner.transport`,
`runner.checks`, `images` and `spec`; never what decides (stacks, components). Start at `orch/plugin.py`.
"""
