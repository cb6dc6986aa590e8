"""Running distributed jobs over SSH: transport, job containers, launchers, the ledger of runs and its loop.

May import `images`, `catalog` and `spec`; knows no cloud and no Pulumi. A fleet arrives as
`orch.spec.state.FleetState`. Start at `lifecycle.py` (the loop), then `decide.py` (what it decides) and
`plan.py` (what a run is made of).
"""
