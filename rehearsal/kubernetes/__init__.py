"""A Kubernetes cluster on this machine: a real control plane, and nodes whose pods are local containers."""

SERVER = True
"""Its `hooks.py` starts a real server in the place of a cluster."""
