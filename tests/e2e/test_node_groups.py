"""Fleets whose nodes need not be close: what one place has no room for goes to the next one of the region."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import KIND, L4, ZONES, Rehearsed, RehearsedGcp

pytestmark = pytest.mark.timeout(600)  # several engines one after another
THREE: dict[str, Any] = {"availability_zones": ["us-east-1a", "us-east-1b", "us-east-1c"], "placement": "any"}


def lab(path: Path, **room: int) -> Rehearsed:
    """An account with room for so many nodes in its zones."""
    return Rehearsed.make(path, capacity={f"{KIND}@us-east-1{zone}": count for zone, count in room.items()})


def zones(there: Rehearsed) -> Counter[str]:
    return Counter(there.nodes().values())


def test_what_a_zone_has_no_room_for_goes_to_the_next_and_to_the_one_after(tmp_path: Path) -> None:
    there = lab(tmp_path, a=2, b=1, c=9)
    there.fleet(6, **THREE)
    said = there.up()
    assert said.code == 0, said.err
    assert zones(there) == {"a": 2, "b": 1, "c": 3}
    assert there.names() == [f"p5-{index}" for index in range(6)]
    assert there.unrecorded() == {}
    shown = there.orch("fleet", "show", "p5", "--rehearse", "--json").json["fleets"][0]["nodes"]
    letters = {name: letter for letter, name in ZONES.items()}
    assert Counter(letters[node["zone"]] for node in shown) == {"a": 2, "b": 1, "c": 3}

    # Room that comes later moves nothing, and nothing is left to do.
    there.cloud.turn(capacity={})
    ids = there.nodes()
    planned = there.preview()
    assert planned.code == 0, planned.err
    assert {**planned.json["summary"], "same": 0} == dict.fromkeys(
        ("create", "update", "replace", "delete", "same"), 0
    )
    assert there.orch("drift", "p5", "--rehearse").code == 0

    # A node that is lost goes elsewhere when its zone is full; the last ones go first, wherever they are.
    lost = next(each for each, zone in ids.items() if zone == "b")
    there.cloud.call("TerminateInstances", {"InstanceIds": [lost]})
    there.cloud.turn(capacity={f"{KIND}@us-east-1b": 0})
    said = there.up()
    assert said.code == 0, said.err
    assert zones(there) == {"a": 2, "c": 4}
    assert there.names() == [f"p5-{index}" for index in range(6)]
    ids = there.nodes()
    there.fleet(3, **THREE)
    said = there.up()
    assert said.code == 0, said.err
    assert there.names() == ["p5-0", "p5-1", "p5-2"]
    assert there.nodes().items() < ids.items()
    assert there.unrecorded() == {}
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_a_fleet_that_is_all_or_nothing_grows_into_another_zone_or_stays_as_it_was(tmp_path: Path) -> None:
    there = lab(tmp_path, a=3, b=2, c=0)
    there.fleet(3, gang="all-or-nothing", **THREE)
    assert there.up().code == 0
    assert zones(there) == {"a": 3}
    there.fleet(5, gang="all-or-nothing", **THREE)
    said = there.up()
    assert said.code == 0, said.err
    assert zones(there) == {"a": 3, "b": 2}
    there.fleet(7, gang="all-or-nothing", **THREE)
    said = there.up()
    assert said.code == 5, said.err
    assert "no room for more nodes beside the 5 of the fleet p5; it is as it was" in said.err
    assert zones(there) == {"a": 3, "b": 2}
    assert there.unrecorded() == {}

    # A zone that the file does not allow any more is left; its nodes are made anew in the others.
    there.cloud.turn(capacity={})
    there.fleet(5, gang="all-or-nothing", **{**THREE, "availability_zones": ["us-east-1a", "us-east-1c"]})
    said = there.up()
    assert said.code == 0, said.err
    assert zones(there) == {"a": 5}
    assert there.unrecorded() == {}
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_a_fleet_that_may_be_short_keeps_what_all_zones_together_have(tmp_path: Path) -> None:
    there = lab(tmp_path, a=2, b=1, c=0)
    there.fleet({"min": 2, "target": 5, "max": 5}, **THREE)
    said = there.up()
    assert said.code == 0, said.err
    assert "3 of 5 nodes" in said.err
    assert "not made: InsufficientInstanceCapacity" in said.err
    assert zones(there) == {"a": 2, "b": 1}
    assert there.unrecorded() == {}


def test_on_gcp_nodes_in_other_zones_share_the_subnets_of_the_region(tmp_path: Path) -> None:
    room = {f"{L4}@us-central1-a": 1, f"{L4}@us-central1-b": 1, f"{L4}@us-central1-c": 9}
    there = RehearsedGcp.make(tmp_path, capacity=room)
    zones = [f"us-central1-{letter}" for letter in "abc"]
    there.fleet(4, placement="any", availability_zones=zones)
    said = there.up()
    assert said.code == 0, said.err
    assert sorted(there.nodes().values()) == ["a", "b", "c", "c"]
    assert len(there.cloud.things("subnetwork")) == 1
    assert there.unrecorded() == {}
    planned = there.preview()
    assert planned.code == 0, planned.err
    assert {**planned.json["summary"], "same": 0} == dict.fromkeys(
        ("create", "update", "replace", "delete", "same"), 0
    )
    there.fleet(1, placement="any", availability_zones=zones)
    said = there.up()
    assert said.code == 0, said.err
    assert there.names() == ["lab-0"]
    assert there.unrecorded() == {}
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_zones_that_no_list_has_are_each_tried_once(tmp_path: Path) -> None:
    kind = "g4dn.xlarge"
    there = Rehearsed.make(tmp_path, capacity={f"{kind}@us-west-1{zone}": 1 for zone in "abc"})
    there.fleet(
        {"min": 1, "target": 9, "max": 9}, placement="any", instance_types=[kind], regions=["us-west-1"]
    )
    said = there.up()
    assert said.code == 0, said.err
    tried = [line for line in said.err.splitlines() if line.startswith("trying ")]
    assert len(tried) == len(set(tried)) > 1
    assert len(there.nodes(kind)) == len(tried)
    assert there.unrecorded() == {}
