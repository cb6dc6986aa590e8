"""A simulated Lambda account: `account.py` is what it has, `api/` what its calls do, `data/` its tables."""

PLUGIN = "pulumi-resource-orch-lambda"
"""The executable that its `plugin.py` stands for."""
