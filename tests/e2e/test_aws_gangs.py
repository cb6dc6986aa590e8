"""Eight nodes on AWS: all of them in one zone, or none. The simulated account's own list is the judge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import KIND, ZONES, Rehearsed, tries

pytestmark = pytest.mark.timeout(600)  # several engines one after another
A_AND_B: dict[str, Any] = {"availability_zones": ["us-east-1a", "us-east-1b"]}


def lab(path: Path, **room: int) -> Rehearsed:
    """An account with room for so many nodes in its zones."""
    return Rehearsed.make(path, capacity={f"{KIND}@us-east-1{zone}": count for zone, count in room.items()})


def test_eight_nodes_that_find_three_in_one_zone_are_eight_in_the_next(tmp_path: Path) -> None:
    there = lab(tmp_path, a=3, b=8)
    there.fleet(8, **A_AND_B)
    said = there.up()
    assert said.code == 0, said.err
    assert f"zone {ZONES['a']}" in said.err
    assert "no room there: InsufficientInstanceCapacity" in said.err
    assert Counter(there.nodes().values()) == {"b": 8}
    assert there.no_room() == {ZONES["a"]}
    reservations = there.cloud.things("capacity-reservation").values()
    assert [doc["AvailabilityZone"] for doc in reservations if doc["State"] == "active"] == ["us-east-1b"]
    assert {
        doc["AvailabilityZone"] for doc in there.cloud.things("subnet").values() if not doc.get("_default")
    } == {"us-east-1b"}
    assert there.unrecorded() == {}

    # Room in the cheaper zone, or elsewhere, moves nothing that is up.
    there.cloud.turn(capacity={})
    ids = there.nodes()
    said = there.orch("up", "p5.yml", "--yes", "--rehearse", "--json")
    assert said.code == 0, said.err
    assert said.json["summary"] | {"same": 0} == dict.fromkeys(
        ("create", "update", "replace", "delete", "same"), 0
    )
    assert there.nodes() == ids
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_a_quota_of_zero_is_told_before_anything_is_made(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path, quotas={"L-417A185B": 0})
    there.fleet(8)
    for said in (there.preview(), there.up()):
        assert said.code == 3
        assert "p5.yml:6:8: error ORCH310" in said.err
    assert not [call for call in there.cloud.calls if call.caller == "pulumi"]


@pytest.mark.parametrize(
    "action",
    [
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("CreateVpc", "CreateCapacityReservation")),
        "RunInstances",
    ],
)
def test_what_the_account_may_not_do_stops_at_once_and_leaves_nothing(tmp_path: Path, action: str) -> None:
    there = Rehearsed.make(tmp_path, denied=[action])
    there.fleet(8, **A_AND_B)
    said = there.up()
    assert said.code == 5, said.err
    assert "ORCH304" in said.err
    assert "UnauthorizedOperation" in said.err
    assert f"ec2:{action}" in said.err
    assert "hint: the message names the action" in said.err
    assert tries(said.err) == 1
    assert there.cloud.everything() == {}


@pytest.mark.soak
def test_a_quota_that_only_the_launch_knows_of_stops_at_once(tmp_path: Path) -> None:
    late = {"code": "VcpuLimitExceeded", "action": "RunInstances", "nth": 6}
    there = Rehearsed.make(tmp_path, failures=[late])
    there.fleet(8, **A_AND_B)
    said = there.up()
    assert said.code == 5, said.err
    assert "ORCH313" in said.err
    assert tries(said.err) == 1
    assert there.cloud.everything() == {}


@pytest.mark.parametrize(
    "fault", ["no room", pytest.param("a quota at the sixth node", marks=pytest.mark.soak)]
)
def test_growth_that_does_not_fit_leaves_the_fleet_as_it_was_also_without_one_of_its_nodes(
    tmp_path: Path, fault: str
) -> None:
    there = lab(tmp_path, a=6, b=8)
    there.fleet(4, **A_AND_B)
    assert there.up().code == 0
    ids, kinds = there.nodes(), there.kinds()
    if fault != "no room":
        late = {"code": "VcpuLimitExceeded", "action": "RunInstances", "nth": 7}
        there.cloud.turn(capacity={}, failures=[late])
    there.fleet(8, **A_AND_B)
    said = there.up()
    assert said.code == 5, said.err
    assert "4" in said.err.split("error ORCH", 1)[1]
    assert there.nodes() == ids
    assert there.kinds() == kinds
    assert there.unrecorded() == {}
    (reservation,) = there.cloud.things("capacity-reservation").values()
    assert reservation["TotalInstanceCount"] == 4

    there.fleet(4, **A_AND_B)
    assert there.preview("p5.yml", "--exit-code").code == 0

    # A node that is removed by its number leaves a gap; the reservation is as before.
    assert there.orch("down", "p5", "-i", "1", "--yes", "--rehearse").code == 0
    assert there.names() == ["p5-0", "p5-2", "p5-3"]
    left = there.nodes()
    there.fleet(8, **A_AND_B)
    there.cloud.turn(capacity={f"{KIND}@us-east-1a": 6}, failures=[])
    assert there.up().code == 5
    assert there.nodes() == left
    there.fleet(4, **A_AND_B)
    assert there.up().code == 0
    assert there.names() == ["p5-0", "p5-1", "p5-2", "p5-3"]
    assert Counter(there.nodes().values()) == {"a": 4}


def test_a_best_effort_fleet_keeps_what_it_got_and_asks_for_the_rest_next_time(tmp_path: Path) -> None:
    there = lab(tmp_path, a=3)
    there.fleet(8, gang="best-effort", **A_AND_B)
    said = there.up()
    assert said.code == 5, said.err
    assert "has 3 nodes, fewer than the 8 it needs" in said.err
    assert Counter(there.nodes().values()) == {"a": 3}
    assert there.preview().json["summary"]["create"] == 5

    # Fewer are enough.
    there.fleet({"min": 2, "target": 8, "max": 8}, gang="best-effort", **A_AND_B)
    said = there.up()
    assert said.code == 0, said.err
    assert "3 of 8 nodes" in said.err
    assert "not made: InsufficientInstanceCapacity" in said.err
    assert Counter(there.nodes().values()) == {"a": 3}
    assert there.unrecorded() == {}
    shown = there.orch("fleet", "show", "p5", "--rehearse", "--json").json["fleets"][0]["nodes"]
    assert sorted(node["name"] for node in shown) == there.names()

    there.cloud.turn(capacity={})
    ids = there.nodes()
    assert there.up().code == 0
    assert ids.items() < there.nodes().items()
    assert there.names() == [f"p5-{index}" for index in range(8)]
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_a_best_effort_fleet_that_gets_not_one_node_goes_on_to_the_next_zone(tmp_path: Path) -> None:
    there = lab(tmp_path, a=0, b=8)
    there.fleet(4, gang="best-effort", **A_AND_B)
    assert there.up().code == 0
    assert Counter(there.nodes().values()) == {"b": 4}
    assert there.unrecorded() == {}
