"""A look at nodes that begins before anybody asks, and what its answer is good for."""

from __future__ import annotations

import threading

import pytest

from orch.runner.errors import RunnerError
from orch.runner.node_api.claims import Claim
from orch.runner.node_api.status import NodeStatus
from orch.runner.runs.seats import early_look
from orch.runner.runs.seats.early_look import EarlyLook, begin_look
from orch.spec.state import FleetState, NodeState

IDLE = NodeStatus("idle")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPk4xsZSJ7GW4EP2gFSoVPLFVQLD5W8Yv7D9c7R5QmLJ"


def fleet(*ports: int) -> FleetState:
    nodes = tuple(
        NodeState(
            name=f"gpu{index}", index=index, address="127.0.0.1", port=port, user="ada", host_key=KEY, cpus=1
        )
        for index, port in enumerate(ports)
    )
    return FleetState(name="lab", stack="lab", backend="local", nodes=nodes)


def test_the_answer_is_waited_for_and_in_the_order_of_the_nodes():
    gate = threading.Event()

    def ask(node: NodeState) -> NodeStatus:
        if node.name == "gpu0":
            gate.wait(60)
        else:
            gate.set()
        return NodeStatus("idle", node.name)

    lab = fleet(22, 23, 24)
    statuses = EarlyLook(lab, begin_look(lab, ask)).answer(lab)
    assert statuses is not None
    assert [status.reason for status in statuses] == ["gpu0", "gpu1", "gpu2"]


def test_the_answer_is_given_once():
    lab = fleet(22)
    look = EarlyLook(lab, lambda: (IDLE,))
    assert look.answer(lab) == (IDLE,)
    assert look.answer(lab) is None


def test_an_answer_of_other_nodes_or_of_long_ago_does_not_count(monkeypatch: pytest.MonkeyPatch):
    assert EarlyLook(fleet(22), lambda: (IDLE,)).answer(fleet(23)) is None
    assert EarlyLook(fleet(22), lambda: (IDLE,)).answer(fleet(22, 23)) is None
    monkeypatch.setattr(early_look, "KEPT_S", -1.0)
    assert EarlyLook(fleet(22), lambda: (IDLE,)).answer(fleet(22)) is None


def test_what_changes_on_a_node_but_its_ways_does_not_matter():
    lab = fleet(22)
    given = lab.model_copy(update={"nodes": (lab.nodes[0].model_copy(update={"env": {"A": "1"}}),)})
    assert EarlyLook(lab, lambda: (IDLE,)).answer(given) == (IDLE,)


def test_nodes_with_claims_are_asked_again_for_these_may_be_over():
    lab = fleet(22, 23)
    busy = NodeStatus("busy", "run a", 1, (Claim("orch-a-0", "a", "ada", "now"),))
    assert EarlyLook(lab, lambda: (IDLE, busy)).answer(lab) is None


def test_a_node_that_does_not_answer_is_not_asked_again():
    lab = fleet(22)
    away = NodeStatus("unreachable", "no route")
    assert EarlyLook(lab, lambda: (away,)).answer(lab) == (away,)


def test_where_a_node_cannot_be_asked_there_is_no_answer():
    def ask(node: NodeState) -> NodeStatus:
        raise RunnerError(f"nobody here reaches node {node.name}")

    lab = fleet(22, 23)
    assert EarlyLook(lab, begin_look(lab, ask)).answer(lab) is None
