"""Runs that the ledger of a project knows as active, without anything on a node."""

from __future__ import annotations

import json

from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import Waiting
from orch.spec.state import NodeState
from orch.stacks.project.project import Project


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


def fail(project: Project, run: str) -> None:
    """Its node was lost: the run has ended, and nothing of it is collected."""
    ledger = open_ledger(project.ledger_url)
    try:
        lease = ledger.take(ledger.get(run).id, "tests")
        assert lease is not None
        ledger.finish(lease, "failed", "job_failed", "its node was lost")
        ledger.release(lease)
    finally:
        ledger.close()


def left(project: Project) -> dict[str, list[str]]:
    """The nodes on which ended runs may have left something, by run."""
    ledger = open_ledger(project.ledger_url)
    try:
        return {
            row.name: [rank.node for rank in row.ranks if not rank.collected] for row in ledger.uncollected()
        }
    finally:
        ledger.close()
