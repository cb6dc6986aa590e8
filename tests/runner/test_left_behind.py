"""What ended runs have left on nodes that are gone for ever holds up nobody."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from kit.ledgers import activeruns

from orch.runner.connect import ConnectorByKind
from orch.runner.errors import HostUnreachable
from orch.runner.ledger.ledger import open_ledger
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.lifecycle import collect_leftovers, forget_machines
from orch.spec.state import NodeState
from orch.stacks.project.project import Project, find

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


def node(number: int) -> NodeState:
    return NodeState.model_validate(
        {
            "index": 0,
            "user": "root",
            "host_key": f"k{number}",
            "name": f"spot-{number}",
            "address": f"127.0.0.{number + 9}",
        }
    )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "orch.yml").write_text("project: lab\n")
    return find(tmp_path)


def test_nodes_that_are_gone_are_asked_all_at_once(project: Project) -> None:
    for number in range(RUNS):
        activeruns.start(project, f"run-{number}", node(number))
        activeruns.fail(project, f"run-{number}")
    ledger = open_ledger(project.ledger_url)
    away = Away()
    try:
        collect_leftovers(RunnerContext(project.dot, ledger, away))
        assert not away.all_asked.broken
        assert len(ledger.uncollected()) == RUNS
    finally:
        away.close()
        ledger.close()


def test_machines_that_are_gone_for_good_are_waited_for_no_longer(project: Project) -> None:
    activeruns.start(project, "one", node(0))
    activeruns.start(project, "both", node(1), node(2))
    activeruns.start(project, "other", node(1), fleet="other")
    for run in ("one", "both", "other"):
        activeruns.fail(project, run)
    ledger = open_ledger(project.ledger_url)
    try:
        gone = {node(1).access.machine, node(2).access.machine}
        forget_machines(ledger, ledger.uncollected("lab"), {node(1).access.machine})
        assert {row.name for row in ledger.uncollected()} == {"one", "both", "other"}
        assert [rank.collected for rank in ledger.get("both").ranks] == [True, False]
        forget_machines(ledger, ledger.uncollected("lab"), gone)
        assert {row.name for row in ledger.uncollected()} == {"one", "other"}
    finally:
        ledger.close()


def test_who_drives_a_run_goes_on_and_what_it_left_stays_known(project: Project) -> None:
    activeruns.start(project, "one", node(0))
    activeruns.fail(project, "one")
    ledger = open_ledger(project.ledger_url)
    try:
        lease = ledger.take(ledger.get("one").id, "somebody")
        assert lease is not None
        forget_machines(ledger, ledger.uncollected(), {node(0).access.machine})
        assert [row.name for row in ledger.uncollected("lab")] == ["one"]
    finally:
        ledger.close()
