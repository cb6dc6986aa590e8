"""What happens on one node: its status, claims, cordon, stage, logs, and the two borders it happens behind.

`connector.py` is how a node is reached, `runtime.py` how a job is started there (with Docker: `docker.py`).
"""
