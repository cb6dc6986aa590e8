"""Runs on Kubernetes: the API server's client, what a run becomes there, and how its pods are reached."""
