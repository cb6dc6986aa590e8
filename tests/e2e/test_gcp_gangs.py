"""Fleets on GCP: all nodes in one zone, or none. The simulated account's own list is the judge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.clouds.rehearsals import L4, RehearsedGcp, tries

ULTRA = "a3-ultragpu-8g"
FLEX: dict[str, Any] = {"type": "gcp", "provisioning": "flex-start", "run_duration": "2d"}
INSERT = "compute.instances.insert"


def lab(path: Path, **room: int) -> RehearsedGcp:
    """An account with room for so many nodes in its zones."""
    return RehearsedGcp.make(
        path, capacity={f"{L4}@us-central1-{zone}": count for zone, count in room.items()}
    )


def two_zones(**more: Any) -> dict[str, Any]:
    return {"availability_zones": ["us-central1-a", "us-central1-b"], **more}


@pytest.mark.timeout(600)
def test_eight_nodes_that_find_three_in_one_zone_are_eight_in_the_next_with_networks_of_its_own(
    tmp_path: Path,
) -> None:
    there = RehearsedGcp.make(tmp_path, capacity={f"{ULTRA}@us-central1-b": 3, f"{ULTRA}@us-east4-b": 8})
    ultra: dict[str, Any] = {
        "instance_types": [ULTRA],
        "resources": {"gpu": "H200:8"},
        "regions": ["us-central1", "us-east4"],
        "network": {"bastion": False, "interconnect": "required"},
    }
    there.fleet(8, **ultra)
    said = there.up()
    assert said.code == 0, said.err
    first, second = (line for line in said.err.splitlines() if line.startswith("trying "))
    assert "us-central1-b" in first
    assert "us-east4-b" in second
    assert "no room there: ZONE_RESOURCE_POOL_EXHAUSTED" in said.err
    assert there.zones(ULTRA) == Counter({"us-east4-b": 8})
    assert there.no_room() == {"us-central1-b"}
    networks = there.cloud.things("network").values()
    profiles = {doc["networkProfile"].rpartition("/")[2] for doc in networks if doc.get("networkProfile")}
    assert profiles == {"us-east4-b-vpc-roce"}
    subnets = there.cloud.things("subnetwork")
    assert len(subnets) == 10
    assert {each.split("/")[3] for each in subnets} == {"us-east4"}
    assert there.unrecorded() == {}

    # Room in the zone before moves nothing that is up.
    there.cloud.turn(capacity={})
    (locked,) = yaml.safe_load((there.path / ".orch/rehearsal/orch.lock").read_text())["fleets"].values()
    assert locked["image"].startswith("projects/ubuntu-os-accelerator-images/global/images/")
    templates = there.cloud.things("instance-template").values()
    disks = [doc["properties"]["disks"][0]["initializeParams"]["sourceImage"] for doc in templates]
    assert all(disk.endswith(locked["image"]) for disk in disks)
    ids = there.nodes(ULTRA)
    assert there.preview(None, "--exit-code").code == 0
    assert there.nodes(ULTRA) == ids
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_a_quota_is_told_before_anything_is_made(tmp_path: Path) -> None:
    there = RehearsedGcp.make(tmp_path, quotas={"NVIDIA_L4_GPUS": 3})
    there.fleet(4)
    for said in (there.preview(), there.up()):
        assert said.code == 3
        assert "error ORCH313" in said.err
        assert "NVIDIA_L4_GPUS" in said.err
    assert there.cloud.everything() == {}


@pytest.mark.parametrize("action", [pytest.param("compute.networks.insert", marks=pytest.mark.soak), INSERT])
def test_what_the_project_may_not_do_stops_at_once_and_leaves_nothing(tmp_path: Path, action: str) -> None:
    there = RehearsedGcp.make(tmp_path, denied=[action])
    there.fleet(4, **two_zones())
    said = there.up()
    assert said.code == 5, said.err
    assert "ORCH304" in said.err
    assert "hint: the message names the permission" in said.err
    assert tries(said.err) == 1
    assert there.cloud.everything() == {}


@pytest.mark.soak
def test_a_quota_that_only_the_launch_knows_of_stops_at_once(tmp_path: Path) -> None:
    told = "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 3.0 in region us-central1."
    late = {"code": "QUOTA_EXCEEDED", "message": told, "action": INSERT, "nth": 3}
    there = RehearsedGcp.make(tmp_path, failures=[late])
    there.fleet(4, **two_zones())
    said = there.up()
    assert said.code == 5, said.err
    assert "ORCH313" in said.err
    assert tries(said.err) == 1
    assert there.cloud.everything() == {}


@pytest.mark.soak
def test_growth_that_does_not_fit_leaves_the_fleet_as_it_was(tmp_path: Path) -> None:
    there = lab(tmp_path, a=3)
    there.fleet(2, **two_zones())
    assert there.up().code == 0
    ids, kinds = there.nodes(), there.kinds()
    there.fleet(4, **two_zones())
    said = there.up()
    assert said.code == 5, said.err
    assert "no room for more nodes beside the 2 of the fleet lab" in said.err
    assert there.nodes() == ids
    assert there.kinds() == kinds
    assert there.unrecorded() == {}
    there.fleet(2, **two_zones())
    assert there.preview(None, "--exit-code").code == 0


@pytest.mark.soak
def test_a_best_effort_fleet_keeps_what_it_got_and_asks_for_the_rest_next_time(tmp_path: Path) -> None:
    there = lab(tmp_path, a=2)
    there.fleet({"min": 1, "target": 4, "max": 4}, gang="best-effort", **two_zones())
    said = there.up()
    assert said.code == 0, said.err
    assert "2 of 4 nodes" in said.err
    assert "not made: ZONE_RESOURCE_POOL_EXHAUSTED" in said.err
    assert there.zones() == Counter({"us-central1-a": 2})
    assert there.unrecorded() == {}

    there.cloud.turn(capacity={})
    ids = there.nodes()
    assert there.up().code == 0
    assert ids.items() < there.nodes().items()
    assert there.names() == [f"lab-{index}" for index in range(4)]


@pytest.mark.soak
def test_spot_that_is_short_in_one_zone_goes_to_the_next(tmp_path: Path) -> None:
    there = RehearsedGcp.make(tmp_path, spot_capacity={f"{L4}@us-central1-a": 1})
    there.fleet(2, spot_policy="spot", **two_zones())
    said = there.up()
    assert said.code == 0, said.err
    assert there.zones() == Counter({"us-central1-b": 2})
    (scheduling,) = {
        (doc["scheduling"]["provisioningModel"], doc["scheduling"]["instanceTerminationAction"])
        for doc in there.cloud.instances().values()
    }
    assert scheduling == ("SPOT", "DELETE")


@pytest.mark.timeout(600)
def test_a_queue_gives_all_nodes_at_once_and_grows_by_another_request(tmp_path: Path) -> None:
    there = lab(tmp_path, a=4)
    there.fleet(2, backend_options=[FLEX], **two_zones())
    said = there.up()
    assert said.code == 0, said.err
    assert "waiting for 2 nodes in the queue of us-central1-a, for 2h at most" in said.err
    assert there.zones() == Counter({"us-central1-a": 2})
    assert there.unrecorded() == {}
    shown = there.orch("fleet", "show", "lab", "--rehearse", "--json").json["fleets"][0]["nodes"]
    assert [node["name"] for node in shown] == ["lab-0", "lab-1"]
    # That the group is larger than it was asked to be is no drift.
    said = there.preview(None, "--exit-code")
    assert (said.code, said.json["drift"]) == (0, [])

    ids = there.nodes()
    there.fleet(4, backend_options=[FLEX], **two_zones())
    assert there.up().code == 0
    assert ids.items() < there.nodes().items()
    assert len(there.cloud.things("resize-request")) == 2

    # More than there is room for, all in one: it waits, and is taken back.
    there.fleet(6, backend_options=[{**FLEX, "max_wait": "2s"}], **two_zones())
    ids = there.nodes()
    said = there.up()
    assert said.code == 5, said.err
    assert there.nodes() == ids
    assert len(there.cloud.things("resize-request")) == 2
    assert there.unrecorded() == {}
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_a_request_that_stays_in_the_queue_is_taken_back_and_the_next_zone_tried(tmp_path: Path) -> None:
    there = lab(tmp_path, a=1, b=2)
    there.fleet(2, backend_options=[{**FLEX, "max_wait": "2s"}], **two_zones())
    said = there.up()
    assert said.code == 0, said.err
    assert "no room there: still in the queue after 2s" in said.err
    assert there.zones() == Counter({"us-central1-b": 2})
    (group,) = there.cloud.things("instance-group-manager")
    assert "us-central1-b" in group
    assert there.unrecorded() == {}
