"""`orch fleet`: since when each node is there, what it is called elsewhere, and which of them are spot."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from kit.ledgers.oldrows import FLEET
from kit.support import Folder

from orch.cli.output.fleet import FleetRow, age, fleet_json, fleet_status, fleet_table, with_ended
from orch.runner.node_api.status import NodeStatus
from orch.spec.errors import OrchError
from orch.spec.state import FleetSpares, FleetState
from orch.stacks.events.notation import parse_time
from orch.stacks.project.project import find
from orch.stacks.record.node_records import node_records

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)
STACK = "pulumi:pulumi:Stack"
INSTANCE = "aws:ec2/instance:Instance"


def p5(nodes: int = 2) -> FleetState:
    told = {"backend": "aws", "name": "p5", "stack": "p5"}
    each = {"zone": "use1-az1", "region": "us-east-1", "instance_type": "p5.48xlarge", "price_hourly": 55.04}
    each["host_key"] = "ssh-ed25519 AAAA"
    return FLEET.model_copy(
        update={
            **told,
            "nodes": tuple(
                FLEET.nodes[0].model_copy(update={"index": at, "name": f"p5-{at}", **each})
                for at in range(nodes)
            ),
        }
    )


def recorded(state: FleetState, *created: str | None, spot: str = "true") -> dict[str, Any]:
    urn = "urn:pulumi:p5::tests::"
    outputs = {"orch": {"schema": 3}, "fleet": state.model_dump(mode="json"), "pins": {"spot": spot}}
    resources: list[dict[str, Any]] = [{"urn": f"{urn}{STACK}::p5", "type": STACK, "outputs": outputs}]
    for node, moment in zip(state.nodes, created, strict=True):
        made = {"created": moment} if moment else {}
        resources.append(
            {
                "urn": f"{urn}{INSTANCE}::{node.name}",
                "type": INSTANCE,
                "custom": True,
                "id": f"i-{node.index}",
                **made,
            }
        )
    return {"resources": resources}


def row(state: FleetState, deployment: dict[str, Any]) -> FleetRow:
    return FleetRow(state, [NodeStatus("idle")] * len(state.nodes), node_records(deployment))


def test_each_node_tells_how_long_it_is_there_and_whether_it_is_spot() -> None:
    shown = fleet_table(
        [row(p5(), recorded(p5(), "2026-11-22T08:59:59.123456789Z", "2026-11-22T11:48:00Z"))],
        verbose=False,
        colour=False,
        now=NOW,
    )
    head, first, second = shown.splitlines()
    assert head.split() == ["FLEET", "NODE", "BACKEND", "GPU", "IP", "PRICE", "CREATED", "STATUS"]
    assert "$55.04 spot  3h ago" in first
    assert "$55.04 spot  12m ago" in second


def test_nodes_of_one_fleet_may_be_bought_at_either_market() -> None:
    state = p5()
    nodes = (state.nodes[0], state.nodes[1].model_copy(update={"spot": True}))
    mixed = state.model_copy(update={"nodes": nodes})
    for pin in ("true", "false"):
        records = node_records(recorded(mixed, None, None, spot=pin))
        assert [records[node.name].spot for node in mixed.nodes] == [False, True]


def test_verbose_shows_type_place_id_and_addresses_too() -> None:
    shown = fleet_table(
        [row(p5(1), recorded(p5(1), "2026-11-20T11:00:00Z", spot="false"))],
        verbose=True,
        colour=False,
        now=NOW,
    )
    head, line = shown.splitlines()
    for heading in ("REGION", "ZONE", "TYPE", "ID", "DISK", "ADDRESS", "SPOT", "CREATED"):
        assert heading in head.split()
    for cell in ("us-east-1", "use1-az1", "p5.48xlarge", "i-0", "127.0.0.1", "no", "2d ago"):
        assert cell in line


def test_a_state_that_tells_no_times_shows_none() -> None:
    old = recorded(p5(), None, None)
    del old["resources"][0]["outputs"]["pins"]
    shown = fleet_table([row(p5(), old)], verbose=False, colour=False, now=NOW)
    assert "$55.04  -        idle" in shown
    assert [node["created_at"] for node in fleet_json(row(p5(), old))["nodes"]] == [None, None]


def test_spares_are_told_as_nodes_are_now_and_so_is_why_none_is_replaced() -> None:
    state = p5(3).model_copy(update={"spares": FleetSpares(count=1, of=3)})
    busy = NodeStatus("busy", busy_blocks=1)

    def shown(*statuses: NodeStatus) -> tuple[list[str], list[bool]]:
        fleet = FleetRow(state, statuses)
        lines = fleet_table([fleet], verbose=False, colour=False, now=NOW).splitlines()[1:]
        data = fleet_json(fleet)
        assert data["spares"] == 1
        assert data["protected"] is None
        return [line.rsplit("  ", 1)[1].strip() for line in lines], [node["spare"] for node in data["nodes"]]

    idle = NodeStatus("idle")
    assert shown(idle, idle, idle) == (["idle", "idle", "idle, spare"], [False, False, True])
    assert shown(busy, idle, busy) == (["busy", "idle, spare", "busy"], [False, True, False])
    assert shown(busy, NodeStatus("unreachable"), busy)[1] == [False, False, False]
    protected = FleetRow(state, [idle] * 3, protected="fleet p5 is protected")
    assert fleet_json(protected)["protected"] == "fleet p5 is protected"
    assert fleet_json(row(p5(1), recorded(p5(1), None)))["spares"] == 0


def test_data_has_the_time_itself() -> None:
    nodes = fleet_json(row(p5(1), recorded(p5(1), "2026-11-22T09:30:00.5+01:00")))["nodes"]
    assert [(node["id"], node["spot"], node["created_at"]) for node in nodes] == [
        ("i-0", True, "2026-11-22T08:30:00Z")
    ]


def test_a_node_of_a_group_is_as_old_as_its_batch_and_has_no_id_of_its_own() -> None:
    state = p5(1)
    node = state.nodes[0].model_copy(update={"name": "p5-x1", "made_by": "p5-0"})
    deployment = recorded(p5(1), "2026-11-22T11:00:00Z")
    outputs = deployment["resources"][0]["outputs"]
    outputs["fleet"] = state.model_copy(update={"nodes": (node,)}).model_dump(mode="json")
    (record,) = node_records(deployment).values()
    assert record.id is None
    assert record.created == NOW - timedelta(hours=1)


def test_an_instance_that_a_replacement_has_still_to_delete_is_not_the_node() -> None:
    deployment = recorded(p5(1), "2026-11-22T11:00:00Z")
    former = {**deployment["resources"][1], "id": "i-old", "delete": True, "created": "2026-01-01T00:00:00Z"}
    deployment["resources"].insert(1, former)
    assert node_records(deployment)["p5-0"].id == "i-0"


@pytest.mark.parametrize(
    "text", [None, 7, "", "yesterday", "2026-02-31T00:00:00Z", "2026-11-22", "2026-11-22T11:00:00"]
)
def test_what_is_no_time_is_none(text: object) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0s ago"),
        (0, "0s ago"),
        (59, "59s ago"),
        (3599, "59m ago"),
        (86_399, "23h ago"),
        (864_000, "10d ago"),
    ],
)
def test_ages_are_told_in_their_largest_unit(seconds: int, words: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == words


# Names for others' commands


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    checkpoint = find(tmp_path).checkpoint("p5")
    assert checkpoint is not None
    checkpoint.parent.mkdir(parents=True)
    latest = recorded(p5(3), *["2026-11-22T11:00:00Z"] * 3)
    checkpoint.write_text(json.dumps({"checkpoint": {"latest": latest}}))
    return Folder(tmp_path)


def test_ids_are_what_the_cloud_calls_the_nodes(folder: Folder) -> None:
    assert folder.orch("fleet", "ids", "p5").out == "i-0\ni-1\ni-2\n"
    assert folder.orch("fleet", "ids", "p5", "-i", "2").out == "i-2\n"


def test_ids_of_nodes_that_are_not_there_are_refused_with_those_that_are(folder: Folder) -> None:
    said = folder.orch("fleet", "ids", "p5", "-i", "1", "-i", "7")
    assert (said.code, said.out) == (2, ""), said.err
    assert "the fleet p5 has no node 7" in said.err
    assert "0 (p5-0), 1 (p5-1), 2 (p5-2)" in said.err


def test_a_fleet_without_nodes_has_a_line() -> None:
    state = p5(0)
    told = fleet_table([row(state, recorded(state))], verbose=False, colour=False, now=NOW).splitlines()
    assert told[1].split()[:3] == ["p5", "-", "aws"]
    assert told[1].endswith("no node")
    assert fleet_json(row(state, recorded(state)))["nodes"] == []


def test_a_node_that_ended_itself_is_told_from_one_that_does_not_answer() -> None:
    def broken() -> frozenset[str]:
        raise OrchError("no credentials")

    silent = [NodeStatus("idle"), NodeStatus("unreachable"), NodeStatus("unreachable")]
    told = with_ended(p5(3), silent, lambda: frozenset({"p5-0", "p5-2"}))
    assert [each.status for each in told] == ["idle", "unreachable", "terminated"]
    assert (fleet_status(told[::2]), fleet_status(told)) == ("active", "degraded")
    assert with_ended(p5(3), silent, broken) == silent
    assert with_ended(p5(3), silent[:1] * 3, broken) == silent[:1] * 3
