"""One node: its status, claims, cordon, stage and logs, behind two interfaces.

`connector.py` is how a node is reached, `runtime.py` how a job is started there (`runtimes/`).
"""
