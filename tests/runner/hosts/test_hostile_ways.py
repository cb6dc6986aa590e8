"""Hosts and users that would be commands: refused where a file is read, harmless wherever they are used."""

from __future__ import annotations

import io
import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.runner.errors import HostKeyRefused, UnsafeName
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.node_api.commands import Command
from orch.runner.ssh.connect import dial_command
from orch.runner.ssh.openssh import ssh_words, write_config
from orch.runner.ssh.pool import SshConnector
from orch.runner.ssh.user_config import UserConfig
from orch.spec.access import Jump
from orch.spec.loader.load import load_paths
from orch.spec.state import NodeState

KEY = new_key_pair().public
NOBODY = Path("/nonexistent/ssh_config")

COMMANDS = [
    "x$({0})",
    "x`{0}`",
    "x;{0}",
    "x|{0}",
    "x&{0}&",
    "x\n{0}\n",
    "x'{0}'",
    'x"; {0}; "',
    "x>${{IFS}}{1}",
    "x > {1}",
    "x\\\n{0}",
    "-oProxyCommand={0}",
]


def node(**more: object) -> NodeState:
    base = {"index": 0, "name": "gpu1", "address": "10.0.0.4", "user": "ops", "host_key": KEY}
    return NodeState.model_validate({**base, **more})


def hostile(mark: Path) -> list[str]:
    return [text.format(f"touch${{IFS}}{mark}", mark) for text in COMMANDS]


@pytest.mark.parametrize("address", ["no where", "$(true)", "a;b"])
def test_what_can_be_no_name_is_tried_once(address: str) -> None:
    with closing(SshConnector(deadline_s=3600.0)) as connector, pytest.raises(UnsafeName) as caught:
        connector.run(node(address=address), Command("true"))
    assert caught.value.summary == f"the name {address} does not resolve"


# AWS's documented way to instances, a plain one, and one that puts the user in.
@pytest.mark.parametrize(
    "command", ['sh -c "echo start-session --target %h"', "echo %h %p", "echo '%r' %n %r"]
)
def test_no_host_and_no_user_runs_a_command_by_way_of_a_proxy_command(tmp_path: Path, command: str) -> None:
    mark = tmp_path / "pwned"
    for text in hostile(mark):
        for address, user in ((text, "ops"), ("10.0.0.4", text)):
            try:
                stream = dial_command(command, address, 22, user)
            except UnsafeName:
                continue
            while stream.recv(4096):
                pass
            stream.close()
    assert not mark.exists()


@pytest.mark.parametrize("address", ["gpu1.lan", "10.0.0.4", "fe80::1%eth0", "i-0abc_def"])
def test_what_is_only_a_name_goes_to_the_proxy_command_as_it_is(address: str) -> None:
    stream = dial_command("echo %h %p %r 100%%", address, 2222, "me@corp.example")
    said = b""
    while more := stream.recv(4096):
        said += more
    stream.close()
    assert said == f"{address} 2222 me@corp.example 100%\n".encode()


@pytest.mark.parametrize("end", ["", "$"])
def test_an_account_of_a_machine_may_be_a_user(end: str) -> None:
    stream = dial_command("echo %r", "gpu1", 22, f"ops{end}")
    assert stream.recv(100) == f"ops{end}\n".encode()
    stream.close()


def test_a_host_name_runs_nothing_by_way_of_the_users_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, file = tmp_path / "pwned", tmp_path / "config"
    monkeypatch.setattr("sys.stdin", io.StringIO())  # what such a command is given
    file.write_text('Match exec "test %h = gpu1"\n User ada\n')
    known = UserConfig(file, None)
    assert known.lookup("gpu1").user == "ada"
    for text in hostile(mark):
        known.lookup(text)
    assert not mark.exists()


FLEET = """\
type: fleet
name: lab
ssh_config:
  user: {user}
  proxy_jump: {{hostname: {hop}, user: {hop_user}}}
  hosts: [{{hostname: {host}, user: {host_user}}}]
"""


@pytest.mark.parametrize("place", ["user", "hop", "hop_user", "host", "host_user"])
def test_a_file_that_names_one_is_refused_at_its_place(tmp_path: Path, place: str) -> None:
    fine = {"user": "ops", "hop": "gate", "hop_user": "me", "host": "gpu1", "host_user": "root"}
    file = tmp_path / "fleet.yml"
    file.write_text(FLEET.format(**fine))
    assert not load_paths([file], environ={}).failed
    for text in hostile(Path("/tmp/pwned")):
        file.write_text(FLEET.format(**{**fine, place: json.dumps(text)}))
        found = load_paths([file], environ={})
        codes = {each.code for each in found.diagnostics}
        assert codes & {"ORCH139", "ORCH131"}, text


def settings(config: Path, name: str) -> dict[str, str]:
    """What `ssh` itself makes of a configuration. Runs nothing."""
    said = subprocess.run(
        ["ssh", "-G", "-F", str(config), name], capture_output=True, text=True, check=True
    ).stdout
    return {key: value for key, _, value in (line.partition(" ") for line in said.splitlines())}


TEXTS = st.text(
    st.sampled_from("ab1 .-_@$%{}()`'\"\\;|&<>#,!*?~/:\n\r\t\0\x1b\u2028\u0085") | st.characters(),
    max_size=20,
) | st.sampled_from(
    ["root\n  ProxyCommand touch PWNED #", "root ProxyCommand=x", "a\r  ProxyCommand x", "-F/x"]
)


@given(st.sampled_from(["name", "address", "user", "identity", "host_key", "hop"]), TEXTS)
def test_no_text_of_a_node_becomes_another_line_for_ssh(
    tmp_path_factory: pytest.TempPathFactory, field: str, text: str
) -> None:
    folder = tmp_path_factory.mktemp("ssh")
    more = {"jump": (Jump(address=text, user=text, host_key=KEY),)} if field == "hop" else {field: text}
    try:
        config = write_config(node(**more), folder, UserConfig(NOBODY, None))
    except (UnsafeName, HostKeyRefused):
        return
    for block in config.read_text().split("\n\n"):
        keys = [line.split()[0] for line in block.splitlines()]
        assert keys == [key for key in ALLOWED if key in keys], block
    known = (folder / "known_hosts").read_text().splitlines()
    assert [line.split()[1:] for line in known] == [KEY.split()] * len(known)
    assert len(known) <= 2


ALLOWED = [
    *(
        "Host",
        "HostName",
        "Port",
        "User",
        "IdentityFile",
        "IdentitiesOnly",
        "HostKeyAlias",
        "UserKnownHostsFile",
    ),
    *("GlobalKnownHostsFile", "StrictHostKeyChecking", "CheckHostIP", "ProxyJump", "ServerAliveInterval"),
]


def test_ssh_reads_zones_percent_signs_and_spaces_as_they_are_meant(tmp_path: Path) -> None:
    folder = tmp_path / "100% mine"
    way = node(address="fe80::1%eth0", identity=f"{folder}/key of %h", jump=())
    config = write_config(way, folder, UserConfig(NOBODY, None))
    found = settings(config, "gpu1")
    assert found["hostname"] == "fe80::1%eth0"
    written = f"{folder}/key of %h".replace("%", "%%")  # told before it is expanded
    assert found["identityfile"] == written
    assert found["user"] == "ops"
    assert found["hostkeyalias"] == "gpu1"
    assert ssh_words(way, folder, UserConfig(NOBODY, None), ["-v"])[-2:] == ["gpu1", "-v"]


def test_a_key_that_holds_more_than_a_key_pins_only_the_key(tmp_path: Path) -> None:
    evil = new_key_pair().public
    write_config(node(host_key=f"{KEY}\n* {evil}"), tmp_path, UserConfig(NOBODY, None))
    assert (tmp_path / "known_hosts").read_text() == f"gpu1 {KEY}\n"


ORCH_YML = [
    "backends: [{{type: ssh, user: {0}}}]\n",
    "backends: [{{type: ssh, proxy_jump: {{hostname: {0}}}}}]\n",
    "backends: [{{type: aws, os_images: {{cpu: {{name: image, user: {0}}}}}}}]\n",
]


@pytest.mark.parametrize("settings", ORCH_YML)
def test_the_project_s_defaults_are_held_to_the_same(tmp_path: Path, settings: str) -> None:
    file = tmp_path / "orch.yml"
    for text, fine in (
        ("ubuntu", True),
        (json.dumps("x$(touch pwned)"), False),
        (json.dumps("a\n b"), False),
    ):
        file.write_text(f"project: tests\n{settings.format(text)}")
        assert load_paths([file], environ={}).failed != fine
