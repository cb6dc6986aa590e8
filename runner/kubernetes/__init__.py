"""Pods of Kubernetes: how they are asked for, and how jobs in them are reached.

`manifests.py` (pure) writes the objects of a gang, `gangs.py` asks for them and tells what they wait for.
"""
