"""A simulated Nebius account: a gRPC service on this machine, which Nebius's own SDK speaks to."""

PLUGIN = "pulumi-resource-orch-nebius"
"""The executable that its `plugin.py` stands for."""
