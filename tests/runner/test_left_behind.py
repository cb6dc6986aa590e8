"""What ended runs have left on nodes that are gone for ever holds up nobody."""

from __future__ import annotations

import threading
from pathlib import Path

import activeruns

from orch.runner.connect import ConnectorByKind
from orch.runner.errors import HostUnreachable
from orch.runner.ledger.ledger import open_ledger
from orch.runner.node.commands import Command
from orch.runner.node.connector import Completed
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.lifecycle import collect_leftovers
from orch.spec.state import NodeState
from orch.stacks.project import find

RUNS = 6


class Away(ConnectorByKind):
    """Nodes that do not answer before all of them are asked."""

    def __init__(self) -> None:
        super().__init__({})
        self.all_asked = threading.Barrier(RUNS)

    def run(self, node: NodeState, command: Command, **_: object) -> Completed:
        del command
        self.all_asked.wait(timeout=120)
        raise HostUnreachable(f"{node.name} does not answer")


def test_nodes_that_are_gone_are_asked_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: lab\n")
    project = find(tmp_path)
    for number in range(RUNS):
        node = NodeState.model_validate(
            {
                "index": 0,
                "user": "root",
                "host_key": "k",
                "name": f"spot-{number}",
                "address": f"127.0.0.{number + 9}",
            }
        )
        activeruns.start(project, f"run-{number}", node)
    ledger = open_ledger(project.ledger_url)
    for row in ledger.runs(active_only=True):
        lease = ledger.take(row.id, "me")
        assert lease is not None
        ledger.finish(lease, "failed", "job_failed", "its node was taken back")
        ledger.release(lease)
    away = Away()
    try:
        collect_leftovers(RunnerContext(project.dot, ledger, away))
        assert not away.all_asked.broken
        assert len(ledger.uncollected()) == RUNS
    finally:
        away.close()
        ledger.close()
