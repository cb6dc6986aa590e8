"""Runs that the ledger of a project knows as active, without anything on a node."""

from __future__ import annotations

import json

from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import Waiting
from orch.spec.state import NodeState
from orch.stacks.project import Project


def start(
    project: Project, run: str, *nodes: NodeState, fleet: str = "lab", waiting: Waiting | None = None
) -> None:
    """Write a run on these nodes into the project's ledger, as one that is about to begin, or waits."""
    plan = {
        "run": run,
        "run_id": "0123456789ab",
        "fleet": fleet,
        "backend": "local",
        "image": "i",
        "ranks": [
            {"rank": rank, "node": node.model_dump(mode="json"), "blocks": 1, "script": ""}
            for rank, node in enumerate(nodes)
        ],
        "launcher": "commands",
        "hostfile": "",
    }
    project.prepare()
    ledger = open_ledger(project.ledger_url)
    try:
        names = [node.name for node in nodes]
        ledger.create(run, fleet, names, lambda number: json.dumps({**plan, "number": number}), waiting)
    finally:
        ledger.close()
