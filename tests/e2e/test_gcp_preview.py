"""What `orch preview` tells of GCP fleets before anything is made, and what it refuses.

Networks that a fleet names are made in the account first, as its owner would have done.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.clouds.rehearsals import RehearsedGcp

PROJECT, REGION = "orch-rehearsal", "us-central1"
MEGA, HIGH, ULTRA, A4X = "a3-megagpu-8g", "a3-highgpu-8g", "a3-ultragpu-8g", "a4x-highgpu-4g"
QUOTAS = {"NETWORKS": 100}


class Rehearsed(RehearsedGcp):
    """Fleets of any type."""

    written: ClassVar[dict[str, Any]] = {"regions": [REGION]}


def kind(name: str, **more: Any) -> dict[str, Any]:
    """A fleet of a type."""
    return {"instance_types": [name], **more}


def network(there: Rehearsed, name: str, place: int, region: str = REGION, **more: Any) -> str:
    """A VPC with one subnet, whose nodes reach each other and the world."""
    status, _ = there.cloud.request(
        "POST",
        f"projects/{PROJECT}/global/networks",
        {},
        {"name": name, "autoCreateSubnetworks": False, "mtu": 8896, **more},
    )
    assert status == 200
    link = f"projects/{PROJECT}/global/networks/{name}"
    roce = "networkProfile" in more
    asked: list[tuple[str, dict[str, Any]]] = [
        (
            f"regions/{region}/subnetworks",
            {"name": f"{name}-{i}", "network": link, "ipCidrRange": f"10.{100 + place}.{i}.0/24"},
        )
        for i in range(8 if roce else 1)
    ]
    if not roce:
        inside = {"allowed": [{"IPProtocol": "all"}], "sourceRanges": ["10.0.0.0/8"], "direction": "INGRESS"}
        nat = {
            "name": "nat",
            "natIpAllocateOption": "AUTO_ONLY",
            "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        }
        asked.append(("global/firewalls", {"name": f"{name}-in", "network": link, **inside}))
        asked.append((f"regions/{region}/routers", {"name": f"{name}-out", "network": link, "nats": [nat]}))
    for path, body in asked:
        status, answer = there.cloud.request("POST", f"projects/{PROJECT}/{path}", {}, body)
        assert status == 200, answer
        assert "error" not in answer, answer
    return name


Setting = Callable[[Rehearsed], dict[str, Any]]


def seven_vpcs(there: Rehearsed) -> dict[str, Any]:
    return kind(MEGA, network={"extra_vpcs": [network(there, f"gpu-{i}", i) for i in range(7)]})


def two_in_one(there: Rehearsed) -> dict[str, Any]:
    zero, one, three = (network(there, f"gpu-{i}", i) for i in (0, 1, 3))
    return kind(HIGH, network={"extra_vpcs": [zero, one, one, three]})


def small_frames(there: Rehearsed) -> dict[str, Any]:
    mtus = (8896, 8896, 1500, 8896)
    return kind(
        HIGH, network={"extra_vpcs": [network(there, f"gpu-{i}", i, mtu=mtu) for i, mtu in enumerate(mtus)]}
    )


def rdma_elsewhere(there: Rehearsed) -> dict[str, Any]:
    profile = f"projects/{PROJECT}/global/networkProfiles/us-east4-b-vpc-roce"
    far = network(there, "rdma", 9, "us-east4", networkProfile=profile)
    return kind(ULTRA, availability_zones=["us-central1-b"], network={"roce_vpcs": [far]})


def given(**fleet: Any) -> Setting:
    return lambda there: fleet


# What is written, or there in the account; where it is told, and as what.
BAD: dict[str, tuple[Setting, str, str]] = {
    "A3 Mega with seven VPCs for its eight interfaces": (
        seven_vpcs,
        "9:15: error ORCH222",
        "a3-megagpu-8g needs 8 extra VPCs, 7 are listed: 1 is missing",
    ),
    "two interfaces in one VPC": (
        two_in_one,
        "9:30: error ORCH226",
        "two interfaces of a node would be in the VPC gpu-1",
    ),
    "a RoCE VPC of another zone": (
        rdma_elsewhere,
        "10:15: error ORCH225",
        "the VPC rdma is of the zone us-east4-b, the fleet goes to us-central1-b",
    ),
    "73 nodes of A4X in one domain of 72 GPUs": (
        given(**kind(A4X, nodes=73)),
        "6:8: error ORCH218",
        "73 nodes of a4x-highgpu-4g do not fit one 1x72 domain: it holds 18",
    ),
    "an MTU of 1500 where GPUDirect sends 8244": (
        small_frames,
        "9:30: error ORCH226",
        "the VPC gpu-2 has an MTU of 1500, a3-highgpu-8g needs 8244",
    ),
    "A3 Mega in a zone without it": (
        given(**kind(MEGA, availability_zones=["us-central1-f"])),
        "8:22: error ORCH205",
        "a3-megagpu-8g is not offered in us-central1-f",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_fleet_that_cannot_be_is_refused_at_its_place_in_the_file(tmp_path: Path, name: str) -> None:
    setting, where, words = BAD[name]
    there = Rehearsed.make(tmp_path, quotas=QUOTAS)
    there.fleet(**{"nodes": 2, **setting(there)})
    calls = len(there.cloud.calls)
    said = there.preview()
    assert said.code == 3, said.err
    assert f"lab.yml:{where}: " in said.err, said.err
    assert words in said.err
    # Nothing was begun.
    asked = {call.action.rpartition(".")[2] for call in there.cloud.calls[calls:]}
    assert asked <= {"get", "list", "aggregatedList", "getFromFamily", "getGuestAttributes"}
    assert there.cloud.instances() == {}


def test_two_previews_are_the_same_and_a_node_is_one_resource(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path, quotas=QUOTAS)
    created: dict[int, int] = {}
    for nodes in (2, 4):
        there.fleet(nodes, **kind(MEGA, availability_zones=["us-central1-a"]))
        first = there.preview()
        assert first.code == 0, first.err
        created[nodes] = first.json["summary"]["create"]
    assert there.preview().out == first.out
    assert there.cloud.everything() == {}
    assert created[4] == created[2] + 2
    types = [change["type"].rpartition(":")[2] for change in first.json["changes"]]
    assert types.count("Network") == 9
    assert types.count("InstanceFromTemplate") == 4
