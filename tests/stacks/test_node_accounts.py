"""What a stack tells of its nodes for the ledger, and what becomes of it when fleets come and go by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.spec.errors import OrchError
from orch.stacks.events.masking import UNKNOWN
from orch.stacks.project.project import Project, find, ledger_scope
from orch.stacks.record.node_accounts import present_nodes, record_all, spent_by
from orch.stacks.stack.state import StackState

CREATED = "2025-01-01T12:00:00Z"
NOON = 1735732800.0


def resource(name: str, kind: str = "aws:ec2/instance:Instance", **more: object) -> dict[str, Any]:
    urn = f"urn:pulumi:lab::demo::{kind}::{name}"
    return {"urn": urn, "type": kind, "custom": True, "id": f"id-{name}", "created": CREATED, **more}


def node(index: int, **more: object) -> dict[str, Any]:
    values = {"machine": f"i-{index}", "price_hourly": 10.0, "gpus": {"count": 8.0}, "instance_type": "p5"}
    host = {"address": "10.0.0.1", "user": "root", "host_key": "k"}
    return {"index": float(index), "name": f"lab-{index}", **host, **values, **more}


def recorded(*resources: dict[str, Any], **fleet: Any) -> dict[str, Any]:
    """A stack as the engine writes it, without outputs where no `fleet` is given."""
    outputs = {"fleet": {"name": "lab", "backend": "aws", **fleet}, "pins": {}} if fleet else {}
    stack = {"urn": "urn:pulumi:lab::demo::pulumi:pulumi:Stack::demo-lab", "type": "pulumi:pulumi:Stack"}
    return {"resources": [{**stack, "outputs": outputs}, *resources]}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "orch.yml").write_text("project: demo\ntags: {team: nlp}\n")
    (tmp_path / "lab.yml").write_text("type: fleet\nname: lab\nnodes: 2\nbackends: [aws]\ntags: {use: dev}\n")
    return find(tmp_path)


@pytest.fixture
def ledger(project: Project) -> Iterator[Ledger]:
    ledger = open_ledger(project.ledger_url)
    yield ledger
    ledger.close()


def write(project: Project, state: dict[str, Any] | None) -> StackState:
    file = project.checkpoint("lab")
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    if state is not None:
        file.write_text(json.dumps({"checkpoint": {"latest": state}}))
    return StackState(project, "lab")


def lives(project: Project, ledger: Ledger) -> list[tuple[str, float | None, float, bool, bool]]:
    """Node, price, beginning, whether it is there, and whether its end is exact."""
    return [
        (each.node, each.price_hourly, each.began_at, each.ended_at is None, each.exact)
        for each in ledger.node_lives(project.name)
    ]


def test_nodes_have_their_market_and_what_is_beside_them_is_told(project: Project) -> None:
    stack = write(
        project,
        recorded(
            *(resource(f"lab-{index}") for index in range(3)),
            resource("lab-bastion"),
            nodes=[node(0), node(1, spot=True, price_hourly=None), node(2, reservation="cr-1"), node(3)],
            beside_hourly=0.01,
        ),
    )
    found = {each.node: each for each in present_nodes(stack)}
    assert {name: (each.market, each.price_hourly, each.kind, each.gpus) for name, each in found.items()} == {
        "lab-0": ("on-demand", 10.0, "node", 8),
        "lab-1": ("spot", None, "node", 8),
        "lab-2": ("reserved", 10.0, "node", 8),
        "lab-bastion": ("on-demand", 0.01, "beside", 0),
    }
    assert {each.created for each in found.values()} == {NOON}
    assert found["lab-0"].identity == "i-0"


def test_hosts_of_the_user_cost_nothing_and_pretended_gpus_are_none(project: Project) -> None:
    kind = "orch:local:Node"
    stack = write(
        project,
        recorded(
            resource("lab-0", kind),
            backend="local",
            simulated=True,
            nodes=[node(0, price_hourly=None, machine=None)],
        ),
    )
    (found,) = present_nodes(stack)
    assert (found.market, found.price_hourly, found.gpus) == ("own", 0.0, 0)
    assert found.identity == f"id-lab-0 {NOON:.0f}"


def test_an_output_that_a_failed_up_could_not_tell_is_none(project: Project) -> None:
    failed = recorded(resource("lab-0"), name="lab")
    failed["resources"][0]["outputs"] = {"fleet": UNKNOWN, "pins": {"region": "r"}}
    stack = write(project, failed)
    assert stack.outputs == {"pins": {"region": "r"}}
    assert (stack.nodes, stack.hourly) == ((), 0.0)
    assert [(each.node, each.price_hourly) for each in present_nodes(stack)] == [("lab-0", None)]


def test_nodes_of_an_up_that_was_not_finished_are_hours_and_then_have_a_price(
    project: Project, ledger: Ledger
) -> None:
    write(project, recorded(resource("lab-0"), resource("lab-vpc", "aws:ec2/vpc:Vpc")))
    record_all(project, ledger, lambda stack: ())
    assert lives(project, ledger) == [("lab-0", None, NOON, True, True)]
    write(project, recorded(resource("lab-0"), nodes=[node(0)]))
    record_all(project, ledger, lambda stack: ())
    first, second = ledger.node_lives(project.name)
    # The hours count once, with their price.
    assert (first.began_at, first.ended_at) == (NOON, NOON)
    assert (second.began_at, second.ended_at, second.price_hourly) == (NOON, None, 10.0)
    assert second.tags == {"team": "nlp", "use": "dev"}


def test_a_stack_that_went_by_hand_ends_its_nodes(project: Project, ledger: Ledger) -> None:
    write(project, recorded(resource("lab-0"), resource("lab-1"), nodes=[node(0), node(1)]))
    assert record_all(project, ledger, lambda stack: ()).problems == []
    # One ended itself, which the cloud tells; then all of it is gone.
    record_all(project, ledger, lambda stack: {"lab-1"})
    assert [each[3:] for each in lives(project, ledger)] == [(True, True), (False, False)]
    write(project, None)
    record_all(project, ledger, lambda stack: pytest.fail("there is nothing to ask"))
    assert [each[3:] for each in lives(project, ledger)] == [(False, False), (False, False)]


def test_what_cannot_be_looked_at_is_told_and_left_as_it_is(project: Project, ledger: Ledger) -> None:
    write(project, recorded(resource("lab-0"), nodes=[node(0)]))
    record_all(project, ledger, lambda stack: ())

    def no_answer(stack: StackState) -> tuple[str, ...]:
        raise OrchError("the cloud does not answer", detail="timeout")

    (problem,) = record_all(project, ledger, no_answer).problems
    assert "lab" in problem
    assert "the cloud does not answer (timeout)" in problem
    assert [each[3:] for each in lives(project, ledger)] == [(True, True)]


@pytest.mark.sqlite
def test_what_was_spent_is_known_before_anything_is_written(project: Project) -> None:
    stack = write(project, recorded(resource("lab-0"), nodes=[node(0)]))
    early = spent_by(stack)
    assert project.local_ledger is not None
    assert not project.local_ledger.exists()
    with_ledger = open_ledger(project.ledger_url)
    record_all(project, with_ledger, lambda stack: ())
    with_ledger.close()
    assert early.dollars is not None
    assert early.dollars == pytest.approx(spent_by(stack).dollars, abs=1.0)
    assert spent_by(write(project, None)).problem is None
    broken = replace(project, ledger_url="postgresql://nobody@127.0.0.1:1/none")
    found = spent_by(StackState(broken, "lab"))
    assert (found.dollars, found.problem) == (None, "the run ledger cannot be used")


@pytest.mark.sqlite
def test_a_ledger_of_several_projects_is_told_which_state_it_is(project: Project, tmp_path: Path) -> None:
    assert ledger_scope(project) == ""
    shared = replace(project, ledger_url="postgresql://db/orch")
    elsewhere = replace(shared, root=tmp_path / "other")
    assert ledger_scope(shared) != ledger_scope(elsewhere)  # each has a state of its own in its folder
    bucket = [replace(each, state_url="s3://bucket/orch") for each in (shared, elsewhere)]
    assert len({ledger_scope(each) for each in bucket}) == 1
