"""Instances of GCP that local nodes stand for: also the members of a group, by their template's user data."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.nodes.nodelab import docker

from orch.rehearsal.nodes.containers import repair, stop
from orch.rehearsal.nodes.names import scope
from orch.runner.ledger.run_folder import new_key_pair

PROJECT = "projects/orch-rehearsal"
ZONE = "zones/us-central1-b"
HOST, CLIENT = new_key_pair(), new_key_pair()
CONFIG = "#cloud-config\n" + yaml.safe_dump(
    {
        "hostname": "one",
        "ssh_keys": {"ed25519_private": HOST.private, "ed25519_public": HOST.public},
        "users": [{"name": "root", "ssh_authorized_keys": [CLIENT.public]}],
    }
)
METADATA = {"items": [{"key": "enable-oslogin", "value": "FALSE"}, {"key": "user-data", "value": CONFIG}]}
NIC = {"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}


@pytest.fixture
def backed(project: Any) -> Iterator[Any]:
    """The project with local nodes behind its instances; all gone afterwards."""
    project.cloud.turn(nodes={})
    yield project
    for instance in list(project.cloud.endpoints()):
        stop(project.cloud, instance)
    assert not containers(project)
    assert not docker("network", "ls", "-q", "--filter", f"name=orch-sim-{scope(project.cloud)}")


def containers(project: Any) -> list[str]:
    name = f"name=^orch-sim-{scope(project.cloud)}-"
    return docker("ps", "-a", "--filter", name, "--format", "{{.Names}}").split()


def test_an_instance_is_a_node_with_its_keys_and_placeholders(backed: Any, tmp_path: Path) -> None:
    instance = backed.launch("one", "a3-highgpu-1g", metadata=METADATA)
    bastion = backed.launch("bastion")
    endpoint = backed.cloud.endpoints()[instance]
    assert bastion not in backed.cloud.endpoints()
    assert endpoint.host_key.split()[:2] == HOST.public.split()[:2]
    assert containers(backed) == [endpoint.container]

    identity, known = tmp_path / "id", tmp_path / "known"
    identity.write_text(CLIENT.private)
    identity.chmod(0o600)
    known.write_text(f"[{endpoint.address}]:{endpoint.port} {endpoint.host_key}\n")
    options = ["-i", str(identity), "-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=yes"]
    where = ["-p", str(endpoint.port), f"{endpoint.user}@{endpoint.address}"]
    look = "hostname; hostname -I; ls /dev/nvidia? | wc -l"
    said = subprocess.run(["ssh", *options, *where, look], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["one", endpoint.internal_ip, "1"]

    backed.call("DELETE", f"{ZONE}/instances/one")
    assert not containers(backed)
    assert not backed.cloud.endpoints()


def test_members_of_a_group_are_nodes_with_one_host_key_and_go_with_it(backed: Any) -> None:
    template = backed.template("t", "a3-highgpu-1g", [NIC], metadata=METADATA)
    group = backed.group("work", template)
    backed.cloud.turn(capacity={"a3-highgpu-1g": 0})
    body = {"name": "work-0", "resizeBy": 2, "requestedRunDuration": {"seconds": "3600"}}
    backed.call("POST", f"{group}/resizeRequests", body)
    assert not containers(backed)
    backed.cloud.turn(capacity={})
    assert backed.call("GET", f"{group}/resizeRequests/work-0")["state"] == "SUCCEEDED"
    endpoints = backed.cloud.endpoints()
    assert set(endpoints) == set(backed.cloud.instances())
    assert len({one.host_key for one in endpoints.values()}) == 1
    assert len({one.internal_ip for one in endpoints.values()}) == 2
    backed.call("DELETE", group)
    assert not containers(backed)


def test_after_a_kill_an_instance_of_the_same_name_has_a_node_of_its_own(backed: Any) -> None:
    instance = backed.launch("one", metadata=METADATA)
    first = backed.cloud.endpoints()[instance].container
    backed.cloud.turn(nodes=None)
    backed.call("DELETE", f"{ZONE}/instances/one")
    backed.launch("one", metadata=METADATA)
    backed.cloud.turn(nodes={})
    assert containers(backed) == [first]
    repair(backed.cloud)
    second = backed.cloud.endpoints()[instance].container
    assert second != first
    assert containers(backed) == [second]


def test_a_node_that_cannot_be_made_ends_its_instance_and_is_told(backed: Any) -> None:
    from orch.spec.errors import OrchError

    backed.cloud.turn(nodes={"image": "orch/none:none"})
    with pytest.raises(OrchError, match="not on this machine"):
        backed.launch("one", metadata=METADATA)
    assert not backed.cloud.instances()
