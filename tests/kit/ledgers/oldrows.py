"""Rows of the ledger as a version wrote them that did not check names."""

from __future__ import annotations

import json

from orch.runner.ledger.ledger import Ledger
from orch.runner.ledger.records import RunRow
from orch.spec.state import FleetState, NodeState

FLEET = FleetState(
    name="lab",
    stack="lab",
    backend="local",
    nodes=(
        NodeState(index=0, name="n0", address="127.0.0.1", user="root", host_key="k", cpus=8, memory_mib=1),
    ),
)


def old_row(ledger: Ledger, name: str) -> RunRow:
    """A run that a version wrote which did not check names."""
    node = FLEET.nodes[0].model_dump(mode="json")
    plan = {
        "run": name,
        "run_id": "0123456789ab",
        "fleet": "lab",
        "backend": "local",
        "image": "i",
        "ranks": [{"rank": 0, "node": node, "blocks": 1, "script": ""}],
        "launcher": "commands",
        "hostfile": "",
    }
    return ledger.create(name, "lab", ["n0"], lambda number: json.dumps({**plan, "number": number}))
