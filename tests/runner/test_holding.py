"""What is held while somebody waits: a run's claims on its nodes, and the lease of who looks after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.ledgers.oldrows import old_row

from orch.runner.errors import HostUnreachable
from orch.runner.events import Silent
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed, Connector
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.ranks import holding
from orch.spec.state import NodeState


class Asked:
    """A way to a node that hands every command to the test."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.came = threading.Event()
        self.answer = lambda: None

    def run(self, node: NodeState, command: Command, **_: object) -> Completed:
        self.commands.append(command)
        self.came.set()
        self.answer()
        return Completed(node.name, command, 0, "", "", 0.0)

    close = hang_up = lambda self: None


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def place(tmp_path: Path, asked: Asked, ledger_url: str) -> Iterator[RunnerContext]:
    transport: Connector = asked  # type: ignore[assignment]
    ledger = open_ledger(ledger_url)
    yield RunnerContext(tmp_path / ".orch", ledger, transport, Silent())
    ledger.close()


def test_claims_are_renewed_while_a_run_waits_and_no_longer(place: RunnerContext, asked: Asked) -> None:
    row = old_row(place.ledger, "job")
    with holding(place.context(row), plan_of(row), (0,), every_s=0.01):
        assert asked.came.wait(30)
    name = plan_of(row).container(0)
    assert str(asked.commands[0]) == f"hold {name}"
    assert all(command == asked.commands[0] for command in asked.commands)
    # One may have been under way.
    time.sleep(0.1)
    sent = len(asked.commands)
    time.sleep(0.1)
    assert len(asked.commands) == sent


def test_the_lease_of_a_pass_is_renewed_while_a_node_keeps_it_waiting(
    place: RunnerContext, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch.runner.ledger.lease.RENEW_S", 0.05)
    row = old_row(place.ledger, "job")
    lease = place.ledger.take(row.id, "me")
    assert lease is not None
    place.ledger.change(lease, phase="running", status="running")
    place.ledger.release(lease)
    renewed: list[bool] = []

    def slowly() -> None:
        began = place.ledger.by_id(row.id).lease_until or 0
        end = time.monotonic() + 30
        while (place.ledger.by_id(row.id).lease_until or 0) <= began and time.monotonic() < end:
            time.sleep(0.05)
        renewed.append((place.ledger.by_id(row.id).lease_until or 0) > began)
        raise HostUnreachable("it does not answer")

    asked.answer = slowly
    lifecycle.reconcile_once(place)
    assert renewed == [True]
