"""Running distributed jobs: the ways to nodes, jobs on them, launchers, the ledger of runs and its loop.

May import `images`, `catalog` and `spec`; knows no cloud and no Pulumi. A fleet arrives as
`orch.spec.state.FleetState`. Start at `runs/lifecycle.py` (the verbs), then `runs/decide.py` (what is next)
and `launch/run_plan.py` (what a run is made of). How a node is reached is a `Connector` (`node/connector.py`;
over SSH: `ssh/`; `connect.py` gives each node its own), how a job is started there a `JobRuntime`
(`node/runtime.py`; with Docker: `node/docker.py`). Nothing else knows an address, a host key or a container.
"""
