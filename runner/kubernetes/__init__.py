"""Pods of a Kubernetes cluster: logging in to its API server, asking it, running commands in containers.

`client.py` is where to start: documents in, documents out, each refusal an error of `errors.py`. `login.py`
finds the cluster and who we are there; `connector.py` makes nodes of pods, over the streams of `channel.py`.
`gangs/` has the pods that a run brings. Imported by `orch.runner.connect` and `orch.components.kubernetes`
alone, gangs by `orch.runner.runs` too.
"""
