"""Networks that two fleets of one zone share: a stack of their own, there as long as one of them is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import L4, RehearsedGcp

from orch.rehearsal.project import rehearse
from orch.stacks.project.project import find
from orch.stacks.provisioning.shared_networks import SHARED_TAG
from orch.stacks.stack.command import plain
from orch.stacks.stack.state import StackState

SHARED: dict[str, Any] = {"network": {"name": "floor", "bastion": False, "interconnect": "ethernet"}}


def networks(there: RehearsedGcp) -> set[str]:
    return {each.rpartition("/")[2] for each in there.cloud.things("network")}


def at_once(there: RehearsedGcp, *commands: tuple[str, str]) -> None:
    """Several commands beside each other, each of which succeeds."""
    started = [there.start(*words, "--yes", "--rehearse") for words in commands]
    for process in started:
        _, err = process.communicate(timeout=400)
        assert process.returncode == 0, err


@pytest.mark.timeout(900)
def test_fleets_come_and_go_at_once(tmp_path: Path) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path)
    for name in ("lab", "other", "third"):
        there.fleet(1, name=name, **SHARED)
    at_once(there, ("up", "lab.yml"), ("up", "other.yml"))
    first = networks(there)
    assert len(first) == 1
    assert there.unrecorded() == {}
    assert there.down().code == 0
    assert networks(there) == first
    assert there.names() == ["other-0"]
    assert there.preview("other.yml", "--exit-code").code == 0

    # The last one goes while another comes: who is later finds a network, the same or a new one.
    at_once(there, ("down", "other"), ("up", "third.yml"))
    assert there.names() == ["third-0"]
    assert len(networks(there)) == 1
    assert there.preview("third.yml", "--exit-code").code == 0
    assert there.up("lab.yml").code == 0
    at_once(there, ("down", "lab"), ("down", "third"))
    assert there.cloud.everything() == {}
    assert not list(there.stacks.glob("*.json"))


@pytest.mark.timeout(600)
def test_the_network_is_part_of_the_fleets_plan_and_drift_and_waits_for_one_that_is_about_to_come(
    tmp_path: Path,
) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path)
    there.fleet(1, **SHARED)
    kinds = {change["type"] for change in there.preview().json["changes"]}
    assert {"gcp:compute/network:Network", "gcp:compute/instanceFromTemplate:InstanceFromTemplate"} <= kinds
    assert there.up().code == 0
    (rule,) = (each for each in there.cloud.things("firewall") if "orch-net" in each)
    assert there.cloud.request("DELETE", rule)[0] == 200
    said = there.orch("drift", "lab", "--rehearse", "--json")
    assert said.code == 10, (said.code, said.err)
    assert [item["observed"] for item in said.json["drift"]] == ["(gone)"]
    assert there.up().code == 0
    assert rule in there.cloud.things("firewall")
    assert [each["name"] for each in there.orch("fleet", "--rehearse", "--json").json["fleets"]] == ["lab"]

    # As an `up` that was killed before it began anything of its own.
    there.fleet(1, name="other", **SHARED)
    project = rehearse(find(tmp_path), nodes=False).project
    plain(StackState(project, "other"), ["stack", "init"])
    plain(StackState(project, "other"), ["stack", "tag", "set", SHARED_TAG, "network.floor"])
    assert there.down().code == 0
    assert len(networks(there)) == 1
    assert there.down("other").code == 0
    assert there.cloud.everything() == {}
    assert not list(there.stacks.glob("*.json"))


def test_a_fleet_that_finds_no_room_takes_its_network_along_and_leaves_that_of_others(tmp_path: Path) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path, capacity={f"{L4}@us-central1-a": 1, "*@us-east1-b": 4})
    there.fleet(
        2, availability_zones=["us-central1-a", "us-east1-b"], regions=["us-central1", "us-east1"], **SHARED
    )
    said = there.up()
    assert said.code == 0, said.err
    assert set(there.zones()) == {"us-east1-b"}
    assert {each.split("/")[3] for each in there.cloud.things("subnetwork")} == {"us-east1"}
    assert there.unrecorded() == {}

    # The second fleet goes where the network is, finds no room there, and leaves it.
    there.cloud.turn(capacity={f"{L4}@us-east1-b": 2})
    there.fleet(
        1, name="other", regions=["us-central1", "us-east1"], availability_zones=["us-east1-b"], **SHARED
    )
    before = there.kinds()
    said = there.up("other.yml")
    assert said.code == 5, said.err
    assert there.kinds() == before
    assert there.preview(None, "--exit-code").code == 0


PLACES = {"up": "compute.firewalls.insert", "down": "compute.networks.delete"}


@pytest.mark.parametrize("words", ["up", pytest.param("down", marks=pytest.mark.soak)])
def test_a_kill_amid_the_shared_network_leaves_nothing_behind(tmp_path: Path, words: str) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path)
    there.fleet(1, **SHARED)
    if words == "down":
        assert there.up().code == 0
    there.killed_at({"action": PLACES[words], "nth": 1, "when": "after"}, words, "lab.yml")
    if words == "up":
        said = there.up()
        assert said.code == 0, said.err
        assert there.unrecorded() == {}
        assert there.names() == ["lab-0"]
    said = there.down()
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}
    assert not list(there.stacks.glob("*.json"))
