"""Ways to hosts, told in the fleet's file alone: root, other ports, several hops with keys of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.hostlab import Client, HostLab
from kit.nodes.labmachine import left_behind


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[HostLab]:
    keys = tmp_path / "keys"
    keys.mkdir()
    lab = HostLab(keys)
    try:
        yield lab
    finally:
        lab.remove()


@pytest.fixture
def project(tmp_path: Path) -> Client:
    """A user without any SSH configuration."""
    (tmp_path / "home").mkdir()
    (tmp_path / "orch.yml").write_text("project: tests\n")
    return Client(tmp_path, tmp_path / "home")


def test_two_hops_and_two_users_each_with_port_and_key_of_its_own(lab: HostLab, project: Client) -> None:
    outside, between, inside = lab.network(), lab.network(internal=True), lab.network(internal=True)
    gate = lab.server("gate", outside, between, engine=False, sshd_port=2201)
    door = lab.server("door", between, inside, direct=False, engine=False, sshd_port=2202)
    n1 = lab.server("n1", inside, direct=False)
    n2 = lab.server("n2", inside, direct=False, sshd_port=2203)
    keys = {name: lab.new_key(name) for name in ("gate-key", "door-key", "root-key")}
    gate.authorize(keys["gate-key"], users=("guest",))
    door.authorize(keys["door-key"], users=("guest",))
    n2.authorize(keys["root-key"], users=("root",))
    file = project.write(
        "fleet.yml",
        f"""
type: fleet
name: inner
placement: cluster
ssh_config:
  user: ops
  identity_file: {lab.key.path}
  proxy_jump:
    - {{hostname: 127.0.0.1, port: {gate.port}, user: guest, identity_file: keys/gate-key}}
    - {{hostname: {door.address(between)}, port: 2202, user: guest, identity_file: keys/door-key}}
  hosts:
    - {{hostname: n1, name: first}}
    - {{hostname: {n2.address(inside)}, port: 2203, user: root, identity_file: keys/root-key, name: second}}
""",
    )
    before = {server.name: server.snapshot() for server in (n1, n2)}
    said = project.orch("up", file, "--yes", "--json", "--accept-new-host-keys")
    assert said.code == 0, said.out + said.err
    pinned = [d["host"] for d in said.json["diagnostics"] if "pinned" in d["summary"]]
    assert len(pinned) == 4
    said = project.orch("exec", "inner", "--", "id -un; hostname")
    assert said.code == 0, said.err
    for text in ("ops", "n1", "root", "n2"):
        assert text in said.out
    assert project.orch("drift", "inner").code == 0
    assert project.orch("down", "inner", "--yes").code == 0
    for server in (n1, n2):
        assert left_behind(before[server.name], server.snapshot()) == {}, server.name


def test_strict_takes_only_keys_that_are_known_or_given(lab: HostLab, project: Client) -> None:
    net = lab.network()
    server, other = lab.server("a", net, engine=True), lab.server("b", net, engine=False)
    text = "type: fleet\nname: strict\nssh_config:\n  known_hosts: strict\n  user: ops\n"
    text += (
        f"  identity_file: {lab.key.path}\n  hosts: [{{hostname: 127.0.0.1, port: {server.port}, name: one"
    )

    def up(more: str) -> int:
        return project.orch("up", project.write("fleet.yml", f"{text}{more}}}]\n"), "--yes").code

    assert up("") == 7
    assert up(f", host_key: {other.host_key}") == 7
    known = project.home / ".ssh/known_hosts"
    known.parent.mkdir()
    known.write_text(f"[127.0.0.1]:{server.port} {server.host_key}\n")
    assert up("") == 0
    known.unlink()
    assert up("") == 0  # pinned
    assert project.orch("down", "strict", "--yes").code == 0
    assert up(f", host_key: {server.host_key}") == 0
    assert project.orch("down", "strict", "--yes").code == 0
