"""What `orch preview` tells of AWS fleets before anything is made, and what it refuses."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import KIND, Rehearsed
from kit.support import ROOT


def test_the_examples_preview_is_the_same_twice_before_and_after_it_is_up(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path)
    shutil.copytree(ROOT / "examples" / "aws", tmp_path / "aws")
    words = ("preview", "aws/p5-cluster.yml", "--rehearse", "--json")
    first = there.orch(*words)
    assert first.code == 0, first.err
    assert first.json["summary"]["create"] > 20
    assert there.orch(*words).out == first.out
    assert there.cloud.everything() == {}

    assert there.up("aws/p5-cluster.yml").code == 0
    after = there.orch(*words, "--exit-code")
    assert after.code == 0, after.err
    assert {change["op"] for change in after.json["changes"]} == {"same"}
    assert there.orch(*words).out == after.out


def test_a_node_is_one_resource(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path, quotas={"L-417A185B": 10_000})
    created: dict[int, int] = {}
    for nodes in (0, 1, 16):
        there.fleet(nodes)
        said = there.preview()
        assert said.code == 0, said.err
        created[nodes] = said.json["summary"]["create"]
    assert created[16] == created[1] + 15
    # Without a node it is a record, which has no place yet.
    assert created[0] == 1


Setting = Callable[[Rehearsed], dict[str, Any]]


def given(**fleet: Any) -> Setting:
    return lambda there: fleet


def reserved(there: Rehearsed) -> dict[str, Any]:
    wanted = {"InstanceType": KIND, "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}
    made = there.cloud.call("CreateCapacityReservation", {**wanted, "InstanceCount": 4})
    return {"reservation": made["CapacityReservation"]["CapacityReservationId"]}


def reserved_and_spot(there: Rehearsed) -> dict[str, Any]:
    return {**reserved(there), "spot_policy": "spot"}


def small_subnet(there: Rehearsed) -> dict[str, Any]:
    vpc = there.cloud.call("CreateVpc", {"CidrBlock": "10.1.0.0/16"})["Vpc"]["VpcId"]
    place = {"VpcId": vpc, "CidrBlock": "10.1.0.0/26", "AvailabilityZone": "us-east-1a"}
    subnet = there.cloud.call("CreateSubnet", place)["Subnet"]["SubnetId"]
    network = {"vpc": vpc, "subnets": [subnet]}
    return {"nodes": 65, "availability_zones": ["us-east-1a"], "network": network}


# What is written, or set in the account; where it is told, and as what.
BAD: dict[str, tuple[Setting, str, str]] = {
    "public addresses with several cards": (
        given(network={"public_ips": True}),
        "8:23: error ORCH221",
        "several network interfaces: 8 Elastic IPs planned, quota 5",
    ),
    "spot with a reservation": (reserved_and_spot, "9:14: error ORCH149", "reserved capacity is never spot"),
    "an unknown type": (
        given(instance_types=["p5.49xlarge"]),
        "7:18: error ORCH202",
        "did you mean 'p5.4xlarge'?",
    ),
    "a type without EFA where it is required": (
        given(instance_types=["m7i.large"], network={"interconnect": "required"}),
        "8:25: error ORCH223",
        "m7i.large has Ethernet only",
    ),
    "65 nodes in a /26": (
        small_subnet,
        "11:12: error ORCH220",
        "65 nodes need 65 addresses",
    ),
    "a reservation of 4 for 8 nodes": (
        reserved,
        "8:14: error ORCH321",
        "the reservation holds 4 instances, the fleet has 8 nodes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_fleet_that_cannot_be_is_refused_at_its_place_in_the_file(tmp_path: Path, name: str) -> None:
    setting, where, words = BAD[name]
    there = Rehearsed.make(tmp_path, quotas={"L-417A185B": 100_000})
    there.fleet(**{"nodes": 8, **setting(there)})
    calls = len(there.cloud.calls)
    said = there.preview()
    assert said.code == 3, said.err
    assert f"p5.yml:{where}: " in said.err
    assert words in said.err
    # Nothing was begun.
    asked = there.cloud.calls[calls:]
    assert not [call for call in asked if call.action.startswith(("Create", "Run", "Allocate"))]


def test_a_capacity_block_in_a_cluster_is_told_to_have_no_placement_group(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path)
    now = time.time()
    block = there.cloud.add_capacity_block(KIND, "us-east-1a", 8, start=now - 3600, end=now + 86_400)
    there.fleet(8, reservation=block)
    told = there.orch("preview", "p5.yml", "--rehearse")
    assert told.code == 0, told.err
    assert "p5.yml:5:12: note ORCH214: a Capacity Block takes no placement group" in told.err
    assert "p5.yml:8:14: warning ORCH216: the reservation ends at" in told.err
    said = there.preview()
    types = {change["type"] for change in said.json["changes"]}
    assert "aws:ec2/placementGroup:PlacementGroup" not in types
    assert "aws:ec2/capacityReservation:CapacityReservation" not in types
    assert "nodes: paid for with the Capacity Block" in said.json["cost"]["unpriced"]
