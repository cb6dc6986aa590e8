"""Running distributed jobs: connectors to nodes, job runtimes, launchers, the ledger of runs, the driver.

May import `images`, `catalog` and `spec`; knows no cloud and no Pulumi. A fleet arrives as
`orch.spec.state.FleetState`. Start at `runs/lifecycle.py` (the verbs), then `runs/decide.py` (what is next)
and `launch/run_plan.py` (what a run is made of). How a node is reached is a `Connector` (`node/connector.py`;
over SSH: `ssh/`; `connect.py` gives each node its own), how a job is started there a `JobRuntime`
(`node/runtime.py`; implemented in `node/runtimes`). No other module knows an address, host key or container.
"""
