"""AWS: an account in a file, its API, and Pulumi's package `aws` on it."""

PLUGIN = "pulumi-resource-aws"
"""The executable that its `plugin.py` stands for."""
