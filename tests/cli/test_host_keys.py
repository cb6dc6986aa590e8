"""Nobody logs in to a host whose key nobody has accepted: what `preview`, `check` and `up` do and tell.

The hosts here are SSH servers that note every log-in somebody tries.
"""

from __future__ import annotations

import contextlib
import os
import pty
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import pytest
from kit.support import ORCH, Folder, Said, fork_server
from paramiko import common

from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.ssh.host_keys import fingerprint

VERBS = {
    "preview": ("preview", "fleet.yml"),
    "check": ("check", "fleet.yml"),
    "up": ("up", "fleet.yml", "--yes"),
    "preview --json": ("preview", "fleet.yml", "--json"),
    "check --json": ("check", "fleet.yml", "--json"),
    "up --json": ("up", "fleet.yml", "--yes", "--json"),
}


@dataclass
class Host(paramiko.ServerInterface):
    """An SSH server that notes whom it was asked to let in, and refuses; a jump host forwards."""

    forwards: bool = False
    tried: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._key = paramiko.ECDSAKey.generate()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.public = f"{self._key.get_name()} {self._key.get_base64()}"
        self.fingerprint = fingerprint(self.public)
        self._wires: list[paramiko.Transport] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        # A close alone does not end `accept`, which would take the next socket of the same number.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for wire in self._wires:
            wire.close()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            wire = paramiko.Transport(link)
            wire.add_server_key(self._key)
            self._wires.append(wire)
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                wire.start_server(server=self)
            if self.forwards:
                threading.Thread(target=self._forward, args=(wire,), daemon=True).start()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.tried.append(username)
        return common.AUTH_SUCCESSFUL if self.forwards else common.AUTH_FAILED

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        self.destination = destination
        return common.OPEN_SUCCEEDED

    def _forward(self, wire: paramiko.Transport) -> None:
        while wire.is_active():
            channel = wire.accept(1)
            if channel is None:
                continue
            there = socket.create_connection(self.destination)

            def copy(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
                with contextlib.suppress(OSError, EOFError):
                    while data := read(4096):
                        write(data)

            threading.Thread(target=copy, args=(channel.recv, there.sendall), daemon=True).start()
            threading.Thread(target=copy, args=(there.recv, channel.sendall), daemon=True).start()


@dataclass
class Site:
    folder: Folder
    host: Host
    gate: Host

    @property
    def home(self) -> Path:
        return self.folder.path / "home"

    def fleet(self, *, more: str = "", jump: bool = False, settings: str = "") -> None:
        way = (
            f"  proxy_jump: {{hostname: 127.0.0.1, port: {self.gate.port}, user: me, identity_file: key}}\n"
            if jump
            else ""
        )
        self.folder.write(
            "fleet.yml",
            f"type: fleet\nname: lab\nssh_config:\n  user: ops\n  identity_file: key\n{way}{settings}"
            f"  hosts: [{{hostname: 127.0.0.1, port: {self.host.port}, name: gpu1{more}}}]\n",
        )

    def orch(self, *words: str) -> Said:
        return self.folder.orch(*words, env={"HOME": str(self.home), "SSH_AUTH_SOCK": ""})

    def answering(self, answers: str, *words: str) -> tuple[int, str]:
        """A command on a terminal where somebody types."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, answers.encode())
            environment = {**os.environ, "HOME": str(self.home), "SSH_AUTH_SOCK": ""}
            code, out, err = fork_server().call([*ORCH, *words], self.folder.path, environment, stdin=theirs)
        finally:
            os.close(ours)
        return code, out + err


@pytest.fixture
def site(folder: Folder) -> Iterator[Site]:
    host, gate = Host(), Host(forwards=True)
    (folder.path / "home/.ssh").mkdir(parents=True)
    key = folder.path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    yield Site(folder, host, gate)
    host.close()
    gate.close()


@pytest.mark.parametrize("verb", ["preview", "check", "up"])
def test_a_host_of_an_unknown_key_is_told_and_not_logged_in_to(site: Site, verb: str) -> None:
    site.fleet()
    said = site.orch(*VERBS[verb])
    assert (said.code, site.host.tried) == (7, []), said.out + said.err
    told = said.out + said.err
    assert site.host.fingerprint in told
    assert "nobody has accepted the host key" in told
    assert "--accept-new-host-keys" in told


@pytest.mark.parametrize("verb", ["preview", "check", "up"])
def test_nor_is_a_jump_host_and_nothing_behind_it_is_asked(site: Site, verb: str) -> None:
    site.fleet(jump=True)
    said = site.orch(*VERBS[verb])
    assert (said.code, site.gate.tried, site.host.tried) == (7, [], []), said.out + said.err
    assert site.gate.fingerprint in said.out + said.err
    assert site.host.fingerprint not in said.out + said.err


def test_a_pipeline_reads_which_hosts_wait_for_which_keys(site: Site) -> None:
    site.fleet()
    for verb in ("preview", "up"):
        said = site.orch(*VERBS[f"{verb} --json"])
        assert [each["code"] for each in said.json["diagnostics"]] == ["ORCH388", "ORCH388"]
        told = said.json["diagnostics"][1]
        key = {"of": "gpu1", "key": site.host.public, "fingerprint": site.host.fingerprint}
        assert (told["host"], told["host_key"]) == ("gpu1", key)
    (host,) = site.orch(*VERBS["check --json"]).json["hosts"]
    results = [(check["id"], check["result"]) for check in host["checks"]]
    assert results[0] == ("ssh.connect", "fail")
    assert {result for _, result in results[1:]} == {"skipped"}


@pytest.mark.parametrize("verb", ["preview", "check", "up"])
@pytest.mark.parametrize("by", ["host_key", "known_hosts", "--accept-new-host-keys"])
def test_a_key_given_or_known_or_the_word_that_takes_all_is_enough(site: Site, verb: str, by: str) -> None:
    site.fleet(more=f', host_key: "{site.host.public}"' if by == "host_key" else "")
    if by == "known_hosts":
        (site.home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{site.host.port} {site.host.public}\n")
    said = site.orch(*VERBS[verb], *([by] if by.startswith("--") else []))
    assert site.host.tried == ["ops"], said.out + said.err
    assert "refuses the login of ops" in said.out + said.err


@pytest.mark.parametrize("verb", ["preview", "check", "up"])
def test_the_word_that_takes_all_new_keys_takes_no_other_one_and_none_where_the_file_is_strict(
    site: Site, verb: str
) -> None:
    other = new_key_pair().public
    site.fleet()
    (site.home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{site.host.port} {other}\n")
    said = site.orch(*VERBS[verb], "--accept-new-host-keys")
    assert (said.code, site.host.tried) == (7, []), said.out + said.err
    (site.home / ".ssh/known_hosts").unlink()
    site.fleet(settings="  known_hosts: strict\n")
    said = site.orch(*VERBS[verb], "--accept-new-host-keys")
    assert (said.code, site.host.tried) == (7, [])
    assert "`known_hosts` is `strict`" in said.out + said.err


def test_on_a_terminal_the_keys_are_shown_before_anything_is_logged_in_to(site: Site) -> None:
    site.fleet()
    code, told = site.answering("n\n", "up", "fleet.yml")
    assert (code, site.host.tried) == (0, []), told
    assert f"gpu1: {site.host.public.split()[0]} {site.host.fingerprint}" in told
    assert "nothing was done" in told
    code, told = site.answering("y\n", "up", "fleet.yml")
    assert (code, site.host.tried) == (7, ["ops"]), told
    assert told.index("Accept these host keys?") < told.index("refuses the login of ops")


def test_behind_a_jump_host_one_answer_after_the_other_is_asked_for(site: Site) -> None:
    site.fleet(jump=True)
    code, told = site.answering("y\nn\n", "up", "fleet.yml")
    assert (code, site.host.tried) == (0, []), told
    assert site.gate.tried
    assert told.index(site.gate.fingerprint) < told.index(site.host.fingerprint)
    code, told = site.answering("y\ny\n", "up", "fleet.yml")
    assert (code, site.host.tried) == (7, ["ops"]), told


def test_a_host_named_for_it_may_show_any_key_and_on_a_terminal_that_is_shown_first(site: Site) -> None:
    site.fleet()
    (site.home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{site.host.port} {new_key_pair().public}\n")
    code, told = site.answering("n\n", "up", "fleet.yml", "--accept-host-key", "gpu1")
    assert (code, site.host.tried) == (0, []), told
    assert site.host.fingerprint in told
    said = site.orch("up", "fleet.yml", "--yes", "--accept-host-key", "gpu1")
    assert site.host.tried == ["ops"], said.err


def test_a_jump_host_may_be_named_as_the_users_own_configuration_calls_it(site: Site) -> None:
    key = site.folder.path / "key"
    (site.home / ".ssh/config").write_text(
        f"Host gate\n HostName 127.0.0.1\n Port {site.gate.port}\n IdentityFile {key}\n"
        "Host 127.0.0.1\n ProxyJump gate\n"
    )
    site.fleet()
    said = site.orch("up", "fleet.yml", "--yes", "--accept-host-key", "gate", "--accept-host-key", "gpu1")
    assert site.gate.tried
    assert site.host.tried == ["ops"], said.err
