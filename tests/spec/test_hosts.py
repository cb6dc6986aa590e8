"""Hosts that exist already: addresses, folded names, private networks, key files, what they inherit."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.spec.grammar import hosts
from orch.spec.grammar.hosts import HostAddress
from orch.spec.grammar.values import Problem
from orch.spec.loader.load import load_paths
from orch.spec.models import Host, SshConfig


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.4", HostAddress("10.0.0.4")),
        ("node1.lan", HostAddress("node1.lan")),
        ("ubuntu@node1:2222", HostAddress("node1", "ubuntu", 2222)),
        ("ubuntu@gpu[01-10].lan:22", HostAddress("gpu[01-10].lan", "ubuntu", 22)),
        ("fd00::1", HostAddress("fd00::1")),
        ("root@[fd00::1]:22", HostAddress("fd00::1", "root", 22)),
        ("[fd00:0:0::1]", HostAddress("fd00::1")),
    ],
)
def test_an_address_has_a_host_and_perhaps_a_user_and_a_port(text: str, address: HostAddress) -> None:
    assert hosts.parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "@a", "a@", "a:b", "a:0", "1.2.3", "1.2.3.4.5", "[::1", "a b", "-a", "gpu[]", "gpu[a-b]", "a/b"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Problem):
        hosts.parse_address(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ("node1",)),
        ("gpu[01-03].lan", ("gpu01.lan", "gpu02.lan", "gpu03.lan")),
        ("n[1-5/2,8]", ("n1", "n3", "n5", "n8")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
    ],
)
def test_folded_names_unfold_in_order(text: str, names: tuple[str, ...]) -> None:
    assert hosts.unfold(text) == names
    assert hosts.folded_size(text) == len(names)


def test_a_bomb_of_folded_names_is_refused_before_it_is_unfolded() -> None:
    with pytest.raises(Problem, match="more than 4096"):
        hosts.check_host("n[1-999][1-999][1-999]")


@pytest.mark.parametrize(
    "text", ["10.1.2.3/16", "192.168.0.0/24", "172.16.0.0/12", "100.64.0.0/10", "fd00::/64"]
)
def test_networks_that_hosts_may_share(text: str) -> None:
    assert "/" in hosts.parse_private_network(text)


@pytest.mark.parametrize("text", ["0.0.0.0/0", "172.0.0.0/8", "8.8.8.0/24", "2001:db8::/32", "127.0.0.0/8"])
def test_networks_that_are_not_private(text: str) -> None:
    with pytest.raises(Problem) as caught:
        hosts.parse_private_network(text)
    assert caught.value.code == "ORCH146"


def test_host_bits_of_a_network_are_ignored() -> None:
    assert hosts.parse_private_network("10.1.2.3/16") == "10.1.0.0/16"


def test_machines_are_single_hosts_with_what_they_inherit() -> None:
    config = SshConfig.model_validate(
        {
            "user": "ubuntu",
            "port": "2222",
            "identity_file": "~/.ssh/id",
            "proxy_jump": {"hostname": "login"},
            "hosts": ["gpu[1-2]", "root@other:22", {"hostname": "third", "identity_file": "own"}],
        }
    )
    machines = config.machines()
    assert [(each.hostname, each.user, each.port, each.identity_file) for each in machines] == [
        ("gpu1", "ubuntu", 2222, "~/.ssh/id"),
        ("gpu2", "ubuntu", 2222, "~/.ssh/id"),
        ("other", "root", 22, "~/.ssh/id"),
        ("third", "ubuntu", 2222, "own"),
    ]
    assert all(each.proxy_jump == config.proxy_jump for each in machines)
    assert isinstance(machines[0], Host)


def test_a_key_file_is_looked_for_beside_the_document_and_must_be_private(tmp_path: Path) -> None:
    path, key = tmp_path / "fleet.yml", tmp_path / "key"
    path.write_text("type: fleet\nssh_config:\n  hosts: [10.0.0.4]\n  identity_file: key\n")
    codes = {}
    for mode in (None, 0o644, 0o600):
        if mode is not None:
            key.touch()
            key.chmod(mode)
        codes[mode] = [(each.code, each.severity.value) for each in load_paths([path]).diagnostics]
    assert codes == {None: [("ORCH151", "warning")], 0o644: [("ORCH152", "warning")], 0o600: []}
    key.chmod(0o644)
    assert ("ORCH152", "error") in [
        (each.code, each.severity.value) for each in load_paths([path], launch=True).diagnostics
    ]
