"""A simulated Crusoe project: `account.py` is what it has, `api/` what its calls do, `data/` its tables."""

PLUGIN = "pulumi-resource-orch-crusoe"
"""The executable that its `plugin.py` stands for."""
