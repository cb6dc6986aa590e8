"""Running distributed jobs: connectors to nodes, job runtimes, launchers, the ledger of runs, the driver.

May import `images`, `catalog` and `spec`; knows no cloud and no Pulumi. A fleet arrives as
`orch.spec.state.FleetState`. Start at `runs/lifecycle.py` (the verbs), then `runs/decide.py` (what is next)
and `plan/run_plan.py` (what a run is made of). A `Connector` (`node_api/connector.py`) reaches a node, over
SSH (`ssh/`) or through a cluster (`kubernetes/`); `connect.py` gives each node its own. A `JobRuntime`
(`node/runtime.py`; implemented in `node/runtimes`) starts jobs there. No other module knows an address, host
key or container.

Imports point one way: plan, node_api, {ssh, kubernetes, ledger}, placement, launch, node, {upload,
preparation, health}, {hosts, metrics}, runs, {access, verify}.
"""
