"""GCP: an account in a file, its API, and Pulumi's package `gcp` on it."""

PLUGIN = "pulumi-resource-gcp"
"""The executable that its `plugin.py` stands for."""
