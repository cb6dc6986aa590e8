"""A Kubernetes cluster on this machine: a real control plane, and nodes whose pods are local containers."""
