"""A simulated Newcloud account: `account.py` is what it has, `api/` its calls, `data/` tables."""

PLUGIN = "pulumi-resource-orch-newcloud"
"""The executable that its `plugin.py` stands for."""
