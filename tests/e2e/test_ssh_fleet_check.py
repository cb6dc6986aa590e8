"""Each requirement of a host broken in turn: `orch check` tells it by the check's id, on that host alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from kit.nodes.hostlab import PASSPHRASE, Client, HostLab, Room
from kit.nodes.labmachine import Network
from kit.nodes.labserver import Server
from kit.support import Said

FLEET = "type: fleet\nname: pair\nplacement: cluster\nssh_config:\n  hosts: [gpu1, gpu2]\n"


@pytest.fixture(scope="module")
def project(room: Room, tmp_path_factory: pytest.TempPathFactory) -> Client:
    path = tmp_path_factory.mktemp("check")
    (path / "orch.yml").write_text("project: tests\n")
    client = Client(path, room.home)
    # Both share two networks of this machine; which one is meant has to be said.
    client.write("fleet.yml", f"{FLEET}  network: {room.fabric.subnet}\n")
    return client


def results(said: Said) -> dict[str, dict[str, str]]:
    """Host -> check -> result."""
    return {
        host["host"]: {check["id"]: check["result"] for check in host["checks"]}
        for host in said.json["hosts"]
    }


def test_whole_hosts_pass_every_check_that_concerns_them(project: Client) -> None:
    said = project.orch("check", "fleet.yml", "--json")
    assert said.code == 0, said.out + said.err
    found = results(said)
    assert list(found) == ["gpu1", "gpu2"]
    assert found["gpu1"] == found["gpu2"]
    assert len(found["gpu1"]) == 21
    others = {"amd.driver", "gaudi.driver", "gaudi.runtime", "tt.driver", "tt.hugepages"}
    assert {check for check, result in found["gpu1"].items() if result == "skipped"} - others <= {
        "nvidia.container",  # no image to try it with is on the hosts
        "fw.external",  # what is reached over loopback is not reached from outside
    }
    assert {check for check, result in found["gpu1"].items() if result == "warn"} == {
        "gpu.health",
        "rdma.devices",
    }


Break = Callable[[Room], AbstractContextManager[object]]
BROKEN: dict[str, tuple[Break, str, str]] = {
    "sshd is stopped": (lambda room: room.servers[0].ssh_stopped(), "ssh.connect", "fail"),
    "the machine hangs": (lambda room: room.servers[0].frozen(), "ssh.connect", "fail"),
    "sshd forwards nothing": (lambda room: room.servers[0].no_forwarding(), "ssh.forwarding", "fail"),
    "sudo asks": (lambda room: room.servers[0].sudo_wants_a_password(), "sudo.nopasswd", "fail"),
    "little disk": (lambda room: room.servers[0].disk_of(20), "host.disk", "fail"),
    "some disk": (lambda room: room.servers[0].disk_of(80), "host.disk", "warn"),
    "the clock is off": (lambda room: room.servers[0].clock_off(600), "host.clock", "warn"),
    "Docker is stopped": (lambda room: room.servers[0].docker_stopped(), "docker.engine", "fail"),
    "no Docker": (lambda room: room.servers[0].docker_missing(), "docker.engine", "fail"),
    "a GPU is gone": (lambda room: room.servers[0].lost_gpu(), "nvidia.driver", "fail"),
    "no driver": (lambda room: room.servers[0].driver_gone(), "nvidia.driver", "fail"),
    "no toolkit": (lambda room: room.servers[0].without_toolkit(), "nvidia.toolkit", "fail"),
    "a firewall between": (lambda room: room.servers[0].refusing(room.servers[1]), "net.mesh", "fail"),
    "another MTU": (lambda room: room.servers[0].mtu(room.fabric, 1400), "net.internal", "fail"),
    "RDMA on the other only": (lambda room: room.servers[1].rdma(room.fabric), "rdma.devices", "fail"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_check_that_says_so(project: Client, room: Room, what: str) -> None:
    broken, check, result = BROKEN[what]
    with broken(room):
        said = project.orch("check", "fleet.yml", "--json")
    assert said.code == (7 if result == "fail" else 0), said.out + said.err
    found = results(said)
    assert found["gpu1"][check] == result, found["gpu1"]
    (told,) = [
        each
        for host in said.json["hosts"]
        if host["host"] == "gpu1"
        for each in host["checks"]
        if each["id"] == check
    ]
    assert told["hint"]
    pairs = {"net.mesh", "net.internal"}
    assert {name for name, one in found["gpu2"].items() if one == "fail"} <= pairs


def test_two_names_of_one_machine_are_told(project: Client, room: Room) -> None:
    gpu1, gpu2 = room.servers[:2]
    with gpu2.machine_id(gpu1.run("cat /etc/machine-id")):
        found = results(project.orch("check", "fleet.yml", "--json"))
    assert found["gpu1"]["host.unique"] == found["gpu2"]["host.unique"] == "fail"


def test_a_wrong_user_and_a_wrong_key_are_told_at_the_connection(project: Client, room: Room) -> None:
    stranger = room.lab.new_key("stranger")
    for line in ("user: nobody-here", f"identity_file: {stranger.path}"):
        project.write("wrong.yml", f"{FLEET}  network: {room.fabric.subnet}\n  {line}\n")
        said = project.orch("check", "wrong.yml", "--json")
        assert said.code == 7
        assert results(said)["gpu1"]["ssh.connect"] == "fail"


def test_a_key_with_a_passphrase_works_through_the_agent_only(project: Client, room: Room) -> None:
    locked = room.lab.new_key("locked", passphrase=PASSPHRASE)
    for server in room.servers[:2]:
        server.authorize(locked, users=("ops",))
    try:
        line = f"identity_file: {locked.path}"
        project.write("locked.yml", f"{FLEET}  network: {room.fabric.subnet}\n  {line}\n")
        said = project.orch("check", "locked.yml", "--json", env={"SSH_AUTH_SOCK": ""})
        assert said.code == 7
        assert "ssh-add" in said.out
        with room.lab.agent(locked) as agent:
            assert project.orch("check", "locked.yml", "--json", env=agent).code == 0
    finally:
        for server in room.servers[:2]:
            server.revoke(locked)


def test_a_matrix_shows_hosts_that_agree_in_one_column(project: Client, room: Room) -> None:
    said = project.orch("check", "fleet.yml")
    assert said.code == 0, said.err
    assert "gpu[1-2]" in said.out
    with room.servers[0].docker_stopped():
        said = project.orch("check", "fleet.yml")
    assert said.code == 7
    assert "docker.engine" in said.out
    assert "gpu[1-2]" not in said.out.splitlines()[0]


class Two:
    """Two servers on networks of their own choosing."""

    def __init__(self, lab: HostLab, path: Path) -> None:
        self.lab = lab
        self.project = Client(path, path / "home")
        (path / "orch.yml").write_text("project: tests\n")

    def servers(self, *networks: tuple[Network, ...]) -> tuple[Server, ...]:
        made = tuple(self.lab.server(f"n{i + 1}", *own) for i, own in enumerate(networks))
        self.lab.ssh_config(self.project.home, *made)
        return made

    def preview(self, more: str = "", hosts: str = "[n1, n2]") -> Said:
        self.project.write(
            "fleet.yml", f"type: fleet\nname: two\nplacement: cluster\nssh_config:\n  hosts: {hosts}\n{more}"
        )
        return self.project.orch("preview", "fleet.yml")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    keys = tmp_path / "keys"
    keys.mkdir()
    lab = HostLab(keys)
    try:
        yield Two(lab, tmp_path)
    finally:
        lab.remove()


def test_two_equal_networks_are_an_error_that_names_both_until_one_is_said(two: Two) -> None:
    first, second = two.lab.network(), two.lab.network(internal=True)
    n1, _ = two.servers((first, second), (first, second))
    said = two.preview()
    assert (said.code, "ORCH362" in said.err) == (3, True)
    assert first.subnet in said.err
    assert second.subnet in said.err
    assert two.preview(f"  network: {second.subnet}\n").code == 0
    with n1.link_speed(second, 400_000):
        assert "ORCH362" in two.preview().err  # one fast end does not make a fast network
    wrong = [f"{{hostname: n{i}, internal_ip: {first.gateway}{i}}}" for i in (1, 2)]
    said = two.preview(hosts=f"[{', '.join(wrong)}]")
    assert (said.code, "ORCH361" in said.err) == (3, True)
    assert "n1" in said.err


def test_no_network_in_common_is_an_error_that_tells_what_each_has(two: Two) -> None:
    first, second = two.lab.network(), two.lab.network()
    two.servers((first,), (second,))
    said = two.preview()
    assert (said.code, "ORCH362" in said.err) == (3, True)
    for text in ("n1", "n2", first.subnet, second.subnet):
        assert text in said.err
