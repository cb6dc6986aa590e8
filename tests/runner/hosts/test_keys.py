"""Where host keys come from: files in known_hosts' form, and hosts that are asked."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.hostlab import Room

from orch.runner.errors import HostKeyRefused, HostUnreachable
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.ssh.endpoint import SshEndpoint, of_node
from orch.runner.ssh.host_keys import HostKey, KnownHosts, fingerprint
from orch.runner.ssh.pool import Patience, SshConnector
from orch.runner.ssh.public_keys import host_key_from_file, scan

KEY, OTHER = new_key_pair().public, new_key_pair().public
RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDTDx7IQ0Bb"


def known(path: Path, *lines: str) -> KnownHosts:
    file = path / "known_hosts"
    file.write_text("".join(f"{line}\n" for line in lines))
    return KnownHosts((str(file), str(path / "not-there")))


@pytest.mark.parametrize(
    ("names", "name", "found"),
    [
        ("gpu1,10.0.0.4", "10.0.0.4", True),
        ("gpu1", "gpu1.lan", False),
        ("GPU1", "gpu1", True),
        ("*.lan,!bad.lan", "gpu1.lan", True),
        ("*.lan,!bad.lan", "bad.lan", False),
        ("[gpu1]:2222", "[gpu1]:2222", True),
        ("[gpu1]:2222", "gpu1", False),
        ("gpu?", "gpu7", True),
    ],
)
def test_names_match_as_ssh_matches_them(tmp_path: Path, names: str, name: str, found: bool):
    key = known(tmp_path, f"{names} {KEY} a comment").lookup(name)
    assert (key is not None) == found
    assert key is None or key == HostKey(KEY, "known_hosts")


@pytest.mark.parametrize("name", ["gpu1.lan", "[10.0.0.4]:2222"])
def test_hashed_names_are_found(tmp_path: Path, name: str):
    hosts = known(tmp_path, f"{name} {KEY}")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(tmp_path / "known_hosts")], check=True)
    assert name not in (tmp_path / "known_hosts").read_text()
    assert hosts.lookup(name) == HostKey(KEY, "known_hosts")
    assert hosts.lookup("other") is None


def test_of_several_keys_the_best_is_taken_and_a_revoked_one_never(tmp_path: Path):
    hosts = known(tmp_path, "# mine", "", f"gpu1 {RSA}", f"gpu1 {KEY}", f"@cert-authority * {OTHER}")
    assert hosts.lookup("gpu1") == HostKey(KEY, "known_hosts")
    assert hosts.lookup("gpu2") is None
    hosts = known(tmp_path, f"gpu1 {KEY}", f"@revoked * {KEY}")
    assert hosts.lookup("gpu1") is None
    assert hosts.revoked(KEY)


def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(tmp_path: Path):
    (tmp_path / "key.pub").write_text(f"{KEY}\n")
    said = subprocess.check_output(["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")], text=True)
    assert said.split()[1] == fingerprint(KEY)


@pytest.mark.parametrize(
    "text", [KEY, f"gpu1 {KEY}", f"{KEY} root@gpu1"], ids=["alone", "after a name", "with a comment"]
)
def test_a_given_key_may_stand_as_in_known_hosts_or_alone(text: str):
    assert host_key_from_file(peer("127.0.0.1", 22), text) == HostKey(KEY, "given")


@pytest.mark.parametrize(
    "text",
    ["SHA256:abc", KEY.split()[1], "ssh-ed25519 " + "A" * 44, ""],
    ids=["a fingerprint", "no type", "no key", "nothing"],
)
def test_a_given_key_that_is_none_is_told(text: str):
    with pytest.raises(HostKeyRefused, match="`host_key` of node gpu1 is not a public key") as caught:
        host_key_from_file(peer("127.0.0.1", 22), text)
    assert caught.value.code == "ORCH363"


def peer(address: str, port: int) -> SshEndpoint:
    return SshEndpoint("node", "gpu1", address, port, "nobody", None, None)


@pytest.fixture
def transport() -> Iterator[SshConnector]:
    transport = SshConnector(connect_timeout_s=20.0)
    yield transport
    transport.close()


def test_a_scan_needs_no_login_and_prefers_ed25519(room: Room, transport: SshConnector):
    server = room.servers[0]
    assert server.port is not None
    found = scan(transport, peer("127.0.0.1", server.port), Patience(20.0, 20.0))
    assert found == HostKey(server.host_key, "scanned")


def test_a_host_behind_a_jump_host_is_scanned_through_it(room: Room, transport: SshConnector):
    hidden = room.servers[3].state(0, through=(room.login,))
    found = scan(transport, of_node(hidden), Patience(20.0, 20.0))
    assert found.public == room.servers[3].host_key


def test_a_scan_of_a_server_that_says_nothing_ends_with_its_time(transport: SshConnector):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(HostUnreachable, match="does not finish an SSH handshake in time"):
            scan(transport, peer("127.0.0.1", port), Patience(1.0, 1.0))


def test_a_scan_of_something_else_says_what_answered(transport: SshConnector):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            link, _ = server.accept()
            link.recv(100)
            link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            link.close()

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        with pytest.raises(HostUnreachable, match="is not an SSH server") as caught:
            scan(transport, peer("127.0.0.1", port), Patience(3.0, 3.0))
        assert "400 Bad Request" in (caught.value.detail or "")


@pytest.mark.parametrize("hashed", [False, True], ids=["plain", "hashed"])
@pytest.mark.parametrize("written", ["GPU1.Lan", "gpu1.lan"])
def test_a_name_with_capitals_is_the_one_that_ssh_has_recorded(
    tmp_path: Path, written: str, hashed: bool
) -> None:
    hosts = known(tmp_path, f"{written.lower()} {KEY}")
    if hashed:  # as Debian's ssh writes it
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(tmp_path / "known_hosts")], check=True)
    assert hosts.lookup(written) == HostKey(KEY, "known_hosts")
