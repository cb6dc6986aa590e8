"""The simulated RunPod account: a local HTTP service, written from RunPod's own documents."""

PLUGIN = "pulumi-resource-orch-runpod"
"""The executable that its `plugin.py` stands for."""
