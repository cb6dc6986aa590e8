"""Instances that local nodes stand for: real containers with the keys of the instance's user data."""

from __future__ import annotations

import base64
import gzip
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kit.nodes.nodelab import docker

from orch.components.aws.account.gather_facts import host_key_of
from orch.rehearsal.nodes.containers import repair, stop
from orch.rehearsal.nodes.names import scope
from orch.rehearsal.nodes.user_data import keys_of
from orch.runner.ledger.run_folder import SshKeyPair, new_key_pair

HOST, CLIENT = new_key_pair(), new_key_pair()


def cloud_config(host: SshKeyPair = HOST, client: SshKeyPair = CLIENT) -> str:
    config = {
        "ssh_keys": {"ed25519_private": host.private, "ed25519_public": host.public},
        "users": ["default", {"name": "root", "ssh_authorized_keys": [client.public]}],
    }
    return "#cloud-config\n" + yaml.safe_dump(config)


def own_key_config(client: SshKeyPair = CLIENT) -> str:
    """User data of a machine that makes its own host key."""
    config = {
        "ssh_genkeytypes": ["ed25519"],
        "users": [{"name": "root", "ssh_authorized_keys": [client.public]}],
    }
    return "#cloud-config\n" + yaml.safe_dump(config)


def encoded(data: str | bytes) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


MIME = (
    'Content-Type: multipart/mixed; boundary="=="\nMIME-Version: 1.0\n\n'
    "--==\nContent-Type: text/x-shellscript\n\n"
    "#!/bin/sh\ntrue\n\n--==\nContent-Type: text/cloud-config\n\n{}\n--==--\n"
)


@pytest.mark.parametrize(
    "data",
    [cloud_config(), gzip.compress(cloud_config().encode()), MIME.format(cloud_config())],
    ids=["plain", "compressed", "several parts"],
)
def test_keys_are_found_in_user_data(data: str | bytes) -> None:
    keys = keys_of(data if isinstance(data, bytes) else data.encode())
    assert keys is not None
    assert keys.host_public.split()[:2] == HOST.public.split()[:2]
    assert keys.authorized == CLIENT.public


@pytest.mark.parametrize(
    "data", ["#!/bin/sh\ntrue\n", "#cloud-config\nruncmd: []\n", "#cloud-config\n[", b"\x1f\x8b"]
)
def test_user_data_without_keys_has_none(data: str | bytes) -> None:
    assert keys_of(data if isinstance(data, bytes) else data.encode()) is None


@pytest.fixture
def backed(account: Any) -> Iterator[Any]:
    """The account with local nodes behind its instances; all gone afterwards."""
    account.cloud.turn(nodes={})
    yield account
    for instance in list(account.cloud.endpoints()):
        stop(account.cloud, instance)
    assert not containers(account)
    assert not docker("network", "ls", "-q", "--filter", f"name=orch-sim-{scope(account.cloud)}")


def containers(account: Any) -> list[str]:
    name = f"name=^orch-sim-{scope(account.cloud)}-"
    return docker("ps", "-a", "--filter", name, "--format", "{{.Names}}").split()


def test_a_launched_instance_is_a_node_with_its_keys_and_placeholders(backed: Any, tmp_path: Any) -> None:
    (instance,) = backed.launch(
        "p5.48xlarge", NetworkInterfaces=backed.p5_nics(), UserData=encoded(cloud_config())
    )
    (plain,) = backed.launch("t3.medium", UserData=encoded("#!/bin/sh\n"))
    endpoint = backed.cloud.endpoints()[instance]
    assert plain not in backed.cloud.endpoints()
    assert endpoint.host_key.split()[:2] == HOST.public.split()[:2]
    assert containers(backed) == [endpoint.container]

    identity, known = tmp_path / "id", tmp_path / "known"
    identity.write_text(CLIENT.private)
    identity.chmod(0o600)
    known.write_text(f"[{endpoint.address}]:{endpoint.port} {endpoint.host_key}\n")
    options = ["-i", str(identity), "-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=yes"]
    where = ["-p", str(endpoint.port), f"{endpoint.user}@{endpoint.address}"]
    look = (
        "hostname -I; ls /dev/nvidia? | wc -l; ls /dev/infiniband | wc -l; docker version -f '{{.Server.Os}}'"
    )
    said = subprocess.run(
        ["ssh", *options, *where, look], capture_output=True, text=True, check=True
    ).stdout.split()
    assert said == [endpoint.internal_ip, "8", "32", "linux"]

    backed.call("TerminateInstances", InstanceIds=[instance])
    assert not containers(backed)
    assert not backed.cloud.endpoints()


def test_a_node_that_makes_its_own_host_key_shows_it_on_the_console_and_has_it(backed: Any) -> None:
    (instance,) = backed.launch(UserData=encoded(own_key_config()))
    endpoint = backed.cloud.endpoints()[instance]
    told = backed.call("GetConsoleOutput", InstanceId=instance, Latest=True)["Output"]
    assert host_key_of(base64.b64decode(told).decode()) == " ".join(endpoint.host_key.split()[:2])
    scan = ["ssh-keyscan", "-t", "ed25519", "-p", str(endpoint.port), endpoint.address]
    there = subprocess.run(scan, capture_output=True, text=True, check=True).stdout
    assert endpoint.host_key.split()[1] in there


def test_after_a_kill_instances_and_containers_are_brought_together(backed: Any) -> None:
    backed.cloud.turn(nodes=None)
    (lost,) = backed.launch(UserData=encoded(cloud_config()))
    backed.cloud.turn(nodes={})
    (kept,) = backed.launch(UserData=encoded(cloud_config()))
    backed.cloud.turn(nodes=None)
    backed.call("TerminateInstances", InstanceIds=[kept])
    backed.cloud.turn(nodes={})
    assert set(backed.cloud.endpoints()) == {kept}
    repair(backed.cloud)
    assert set(backed.cloud.endpoints()) == {lost}
    assert containers(backed) == [backed.cloud.endpoints()[lost].container]


def test_a_node_that_cannot_be_made_ends_its_instance_and_is_told(backed: Any) -> None:
    from orch.spec.errors import OrchError

    backed.cloud.turn(nodes={"image": "orch/none:none"})
    with pytest.raises(OrchError, match="not on this machine"):
        backed.launch(UserData=encoded(cloud_config()))
    assert not backed.cloud.instances()
