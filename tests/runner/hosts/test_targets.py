"""Which machines an `ssh_config` names, by which way and with which keys."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

import pytest
from kit.nodes.hostlab import Room

from orch.runner.errors import BadSshConfig, HostKeyRefused, HostUnreachable, RunnerError
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.node_api.commands import Command
from orch.runner.node_api.target import TargetError
from orch.runner.ssh.endpoint import SshEndpoint
from orch.runner.ssh.host_keys import RevokedKeys
from orch.runner.ssh.naming import located, names, pins
from orch.runner.ssh.openssh import write_config
from orch.runner.ssh.pool import SshConnector
from orch.runner.ssh.targets import SshTarget, find_targets
from orch.runner.ssh.user_config import UserConfig
from orch.spec.access import resolved
from orch.spec.models.ssh import SshConfig
from orch.spec.state import NodeState

KEY, OTHER = new_key_pair().public, new_key_pair().public


def config(**settings: object) -> SshConfig:
    return SshConfig.model_validate(settings)


def user_config(folder: Path, text: str = "") -> UserConfig:
    """A user's configuration that knows nobody's real hosts, with a known_hosts file of its own."""
    file = folder / "ssh_config"
    file.write_text(f"{text}\nHost *\n UserKnownHostsFile {folder}/known\n GlobalKnownHostsFile none\n")
    return UserConfig(file, None)


def target(found: SshTarget | TargetError) -> SshTarget:
    assert isinstance(found, SshTarget), found
    return found


def failure(found: SshTarget | TargetError) -> TargetError:
    assert isinstance(found, TargetError), found
    return found


def test_names_are_those_given_else_host_names_with_the_port_where_needed():
    hosts = ["gpu[1-2].lan", {"hostname": "10.0.0.4", "name": "head"}, "fd00::7", "a:22", "a:2222"]
    assert names(config(hosts=hosts)) == ("gpu1.lan", "gpu2.lan", "head", "fd00--7", "a-22", "a-2222")


def test_two_hosts_of_one_name_are_told_and_the_others_go_on(tmp_path: Path):
    jump = {"hostname": "login", "user": "me"}
    hosts = ["10.0.0.4", {"hostname": "10.0.0.4", "proxy_jump": jump}, {"hostname": "b", "host_key": KEY}]
    found = find_targets(
        config(hosts=hosts), tmp_path, {"jump login": KEY}, user_config=user_config(tmp_path)
    )
    assert "give each a `name`" in (failure(found[0]).error.hint or "")
    assert isinstance(found[1], TargetError)
    assert target(found[2]).node.ssh.host_key == KEY


def test_the_file_wins_over_the_users_configuration_and_that_over_defaults(tmp_path: Path):
    said = "Host gpu*\n HostName %h.example.com\n User ada\n Port 2200\n ProxyCommand nc %h %p\n"
    hosts = [
        {"hostname": "gpu1", "host_key": KEY},
        {"hostname": "gpu2", "user": "ops", "port": 22, "identity_file": "keys/a", "host_key": KEY},
        {"hostname": "other", "host_key": KEY},
    ]
    found = find_targets(config(hosts=hosts), tmp_path, {}, user_config=user_config(tmp_path, said))
    first, second, third = (target(each).node for each in found)
    assert (first.name, first.ssh.address, first.ssh.port, first.ssh.user) == (
        "gpu1",
        "gpu1.example.com",
        2200,
        "ada",
    )
    assert first.ssh.proxy_command == "nc %h %p"
    assert (second.ssh.address, second.ssh.port, second.ssh.user) == ("gpu2.example.com", 22, "ops")
    assert second.ssh.identity == "keys/a"
    assert (third.ssh.address, third.ssh.port, third.ssh.user) == ("other", 22, getpass.getuser())
    assert [node.index for node in (first, second, third)] == [0, 1, 2]


def test_paths_of_keys_stay_as_written_and_are_found_from_the_folder(tmp_path: Path):
    jump = {"hostname": "login", "user": "me", "identity_file": "~/j"}
    settings = config(hosts=[{"hostname": "a", "host_key": KEY}], identity_file="keys/a", proxy_jump=jump)
    node = target(find_targets(settings, tmp_path, {"jump login": KEY})[0]).node
    assert (node.ssh.identity, node.ssh.jump[0].identity) == ("keys/a", "~/j")
    whole = located(node, tmp_path)
    assert whole.ssh.identity == str(tmp_path / "keys/a")
    assert whole.ssh.jump[0].identity == str(Path.home() / "j")
    assert resolved("/etc/key", tmp_path) == "/etc/key"
    assert resolved(None, tmp_path) is None


def test_hops_come_from_the_file_or_the_users_configuration_with_their_own_settings(tmp_path: Path):
    key = tmp_path / "inner-key"
    key.write_text("a key")
    said = (
        f"Host inner\n HostName 10.1.1.1\n User ian\n Port 2201\n IdentityFile {key}\n ProxyJump outer\n"
        "Host outer\n User olga\n"
        "Host node\n ProxyJump me@first:2000,inner\n"
        "Host last\n ProxyJump none\n"
    )
    pinned = {f"jump {name}": KEY for name in ("outer", "[10.1.1.1]:2201", "[first]:2000", "[10.1.1.1]:99")}
    hosts = [
        {"hostname": "node"},
        {"hostname": "own", "proxy_jump": {"hostname": "inner", "port": 99}},
        "last",
    ]
    pinned |= {"node": KEY, "own": OTHER, "last": OTHER}
    found = find_targets(config(hosts=hosts), tmp_path, pinned, user_config=user_config(tmp_path, said))
    by_config, by_file, direct = (target(each).node for each in found)
    assert [(j.address, j.port, j.user) for j in by_config.ssh.jump] == [
        ("first", 2000, "me"),
        ("10.1.1.1", 2201, "ian"),
    ]
    assert by_config.ssh.jump[1].identity == str(key)
    # The way to `inner` itself leads through `outer`, as it would with ssh.
    assert [(j.address, j.port, j.user) for j in by_file.ssh.jump] == [
        ("outer", 22, "olga"),
        ("10.1.1.1", 99, "ian"),
    ]
    assert all(j.host_key == KEY for j in (*by_config.ssh.jump, *by_file.ssh.jump))
    assert direct.ssh.jump == ()
    assert pins((by_config, by_file, direct)) == pinned


@pytest.mark.parametrize("way", ["given", "pinned", "accepted", "pinned for a jump host"])
def test_a_key_that_is_revoked_is_refused_however_it_came_to_be_known(tmp_path: Path, way: str):
    user = user_config(tmp_path)
    (tmp_path / "known").write_text(f"@revoked * {KEY} stolen\n")
    host: dict[str, object] = {"hostname": "127.0.0.1", "port": 9, "name": "gpu1", "host_key": OTHER}
    pinned, accepted = {}, {}
    if way == "pinned for a jump host":
        host["proxy_jump"] = {"hostname": "login", "user": "me"}
        pinned = {"jump login": KEY}
    elif way == "given":
        host["host_key"] = KEY
    else:
        del host["host_key"]
        (pinned if way == "pinned" else accepted)["gpu1"] = KEY
    found = find_targets(config(hosts=[host]), tmp_path, pinned, accepted=accepted, user_config=user)
    told = failure(found[0]).error.text()
    assert "ORCH363" in told
    assert "is revoked in your known_hosts" in told
    assert "@revoked" in told


@pytest.mark.parametrize("kind", ["node", "jump host"])
def test_nobody_connects_to_a_host_of_a_state_whose_key_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(f"gpu1 {OTHER}\n")
    jump = {"address": "127.0.0.1", "port": 9, "user": "me", "host_key": KEY}
    node = NodeState.model_validate(
        {"index": 0, "name": "gpu1", "address": "127.0.0.1", "port": 9, "user": "ops"}
        | ({"host_key": KEY} if kind == "node" else {"host_key": OTHER, "jump": [jump]})
    )

    def refused() -> RunnerError:
        transport = SshConnector(deadline_s=0)
        try:
            with pytest.raises(RunnerError) as caught:
                transport.run(node, Command("true", "nothing"))
        finally:
            transport.close()
        return caught.value

    assert isinstance(refused(), HostUnreachable)
    write_config(node, tmp_path / "before", UserConfig())
    (tmp_path / ".ssh" / "known_hosts").write_text(f"gpu1 {OTHER}\n@revoked 10.* {KEY}\n")
    told = refused()
    assert isinstance(told, HostKeyRefused)
    assert "revoked" in told.summary
    with pytest.raises(HostKeyRefused, match="revoked"):
        write_config(node, tmp_path / "ssh", UserConfig())


def test_a_jump_host_for_all_hosts_is_not_its_own(tmp_path: Path):
    known = user_config(tmp_path, "Host *\n ProxyJump login\n")
    pinned = {"gpu1": KEY, "login": KEY, "jump login": OTHER}
    found = find_targets(config(hosts=["gpu1", "login"]), tmp_path, pinned, user_config=known)
    assert [jump.address for jump in target(found[0]).node.ssh.jump] == ["login"]
    assert target(found[1]).node.ssh.jump == ()


def test_included_files_count_where_they_are_included(tmp_path: Path):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "a").write_text("User from-a\nHost gpu1\n Port 2201\n")
    (tmp_path / "inc" / "b").write_text("Host gpu1\n User late\n")
    said = f"Include {tmp_path}/inc/*\nPort 2222\nHost other\n Include {tmp_path}/inc/a\n"
    known = user_config(tmp_path, said)
    assert (known.lookup("gpu1").user, known.lookup("gpu1").port) == ("from-a", 2201)
    assert known.lookup("gpu2").port == 2222


def test_a_configuration_that_ssh_would_refuse_is_told(tmp_path: Path):
    with pytest.raises(BadSshConfig, match="cannot be used"):
        user_config(tmp_path, "Host a\n Port ssh\n").lookup("a")
    (tmp_path / "loop").write_text(f"Include {tmp_path}/loop\n")
    with pytest.raises(BadSshConfig) as caught:
        UserConfig(tmp_path / "loop", None).lookup("a")
    assert "too deep" in (caught.value.detail or "")


def test_keys_are_given_else_pinned_else_known_else_asked_of_the_host(room: Room, tmp_path: Path):
    server = room.servers[0]
    there = {"hostname": "127.0.0.1", "port": server.port, "user": "ops"}
    user = user_config(tmp_path)

    def find(pinned: dict[str, str], **more: object) -> SshTarget:
        settings = config(hosts=[{**there, "name": "gpu1", **more}], connect_timeout="20s")
        return target(find_targets(settings, tmp_path, pinned, accept_new="all", user_config=user)[0])

    asked = find({})
    assert (asked.key_source, asked.node.ssh.host_key) == ("scanned", server.host_key)
    assert asked.fingerprint.startswith("SHA256:")
    (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {OTHER}\n")
    assert (find({}).key_source, find({}).node.ssh.host_key) == ("known_hosts", OTHER)
    assert (find({"gpu1": KEY}).key_source, find({"gpu1": KEY}).node.ssh.host_key) == ("pinned", KEY)
    assert (find({"gpu1": OTHER}, host_key=KEY).key_source, find({}, host_key=KEY).node.ssh.host_key) == (
        "given",
        KEY,
    )


def test_a_key_to_be_accepted_is_asked_anew_whatever_was_pinned(room: Room, tmp_path: Path):
    server = room.servers[0]
    settings = config(hosts=[{"hostname": "127.0.0.1", "port": server.port, "name": "gpu1"}])
    (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {OTHER}\n")
    with server.other_host_key() as new:
        found = find_targets(
            settings,
            tmp_path,
            {"gpu1": server.host_key},
            rekeyed=("gpu1",),
            accept_new="named",
            user_config=user_config(tmp_path),
        )
        assert (target(found[0]).key_source, target(found[0]).node.ssh.host_key) == ("scanned", new)


def test_strict_accepts_no_key_that_it_asked_for_and_tells_its_fingerprint(room: Room, tmp_path: Path):
    server = room.servers[0]
    hosts = [
        {"hostname": "127.0.0.1", "port": server.port, "name": "unknown"},
        {"hostname": "127.0.0.1", "port": 9, "name": "away"},
        {"hostname": "127.0.0.1", "port": 10, "name": "told", "host_key": KEY},
    ]
    settings = config(hosts=hosts, known_hosts="strict", connect_timeout="10s")
    unknown, away, told = find_targets(settings, tmp_path, {}, user_config=user_config(tmp_path))
    error = failure(unknown).error
    assert (error.code, int(error.exit_code)) == ("ORCH363", 7)
    assert "unknown" in error.summary
    assert "ssh-ed25519 SHA256:" in (error.detail or "")
    assert server.host_key in (error.hint or "")
    assert failure(away).error.code == "ORCH363"
    assert "refuses connections" in (failure(away).error.detail or "")
    assert target(told).key_source == "given"


def test_one_host_that_is_away_fails_alone_and_a_dead_jump_host_by_its_own_name(room: Room, tmp_path: Path):
    server = room.servers[0]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts = [
            {"hostname": "127.0.0.1", "port": server.port, "name": "there"},
            {"hostname": "127.0.0.1", "port": 9, "name": "refuses"},
            {"hostname": "127.0.0.1", "port": mute.getsockname()[1], "name": "hangs"},
            {"hostname": "nowhere.invalid", "name": "nameless"},
            *(
                {"hostname": f"10.9.9.{i}", "proxy_jump": {"hostname": "127.0.0.1", "port": 9, "user": "x"}}
                for i in (1, 2)
            ),
        ]
        found = find_targets(
            config(hosts=hosts, connect_timeout="6s"),
            tmp_path,
            {},
            accept_new="all",
            user_config=user_config(tmp_path),
        )
    assert target(found[0]).key_source == "scanned"
    said = [failure(each).error.summary for each in found[1:]]
    assert "refuses connections" in said[0]
    assert "does not finish an SSH handshake" in said[1]
    assert "does not resolve" in said[2]
    assert said[3] == said[4] == "jump host 127.0.0.1 cannot be reached"
    assert "refuses connections" in (failure(found[4]).error.detail or "")


def test_a_host_behind_a_jump_host_is_found_and_reached_with_both_keys(room: Room, tmp_path: Path):
    hidden, login = room.servers[3], room.login
    address = next(address for network, address in hidden.addresses.items() if network in login.addresses)
    jump = {
        "hostname": "127.0.0.1",
        "port": login.port,
        "user": "guest",
        "identity_file": str(room.lab.key.path),
    }
    host = {"hostname": address, "user": "ops", "identity_file": str(room.lab.key.path), "proxy_jump": jump}
    user = user_config(tmp_path)
    found = find_targets(config(hosts=[host]), tmp_path, {}, accept_new="all", user_config=user)
    here = target(found[0])
    assert (here.key_source, here.node.ssh.host_key) == ("scanned", hidden.host_key)
    assert [(hop.host_key, key.source) for hop, key in here.hops] == [(login.host_key, "scanned")]
    transport = SshConnector(deadline_s=30.0)
    assert transport.run(located(here.node, tmp_path), Command("hostname")).stdout == "gpu4\n"
    transport.close()
    again = find_targets(config(hosts=[host]), tmp_path, pins([here.node]), user_config=user_config(tmp_path))
    assert target(again[0]).node == here.node
    assert target(again[0]).hops[0][1].source == "pinned"


def test_the_users_configuration_alone_is_enough(room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (room.home / ".ssh" / "config").read_text()
    known = user_config(tmp_path, text)
    found = find_targets(config(hosts=["gpu[1-4]"]), tmp_path, {}, accept_new="all", user_config=known)
    transport = SshConnector(deadline_s=30.0)
    said = [transport.run(located(target(each).node, tmp_path), Command("hostname")).stdout for each in found]
    transport.close()
    assert said == ["gpu1\n", "gpu2\n", "gpu3\n", "gpu4\n"]


@pytest.mark.parametrize(
    ("written", "file"),
    [
        ("%d/known", "home/known"),
        ("~/known", "home/known"),
        ("${HOME}/known", "home/known"),
        ("%d/known-%h", "home/known-10.0.0.4"),
        ("%d/%n.%p.%r", "home/Login.2200.ops"),
        ("%d/100%%", "home/100%"),
        ('none "%d/a name"', "home/a name"),
    ],
)
def test_a_known_hosts_file_is_found_where_ssh_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, file: str
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / file).write_text(f"[10.0.0.4]:2200 {KEY}\n")
    (tmp_path / "config").write_text(f"Host Login\n HostName 10.0.0.4\n UserKnownHostsFile {written}\n")
    hosts = [{"hostname": "Login", "port": 2200, "user": "ops"}]
    user = UserConfig(tmp_path / "config", None)
    (found,) = find_targets(config(hosts=hosts), tmp_path, {}, user_config=user)
    assert (target(found).key_source, target(found).node.ssh.host_key) == ("known_hosts", KEY)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("%C/known", "%C is not known here"),
        ("~/known%", "% is not known here"),
        ("${NO_SUCH}/known", "the variable NO_SUCH is not set"),
    ],
)
def test_a_known_hosts_file_that_cannot_be_told_is_refused_and_not_passed_over(
    tmp_path: Path, written: str, why: str
) -> None:
    (tmp_path / "config").write_text(f"Host a\n UserKnownHostsFile {written}\n")
    user = UserConfig(tmp_path / "config", None)
    with pytest.raises(BadSshConfig) as caught:
        find_targets(config(hosts=["a"]), tmp_path, {}, user_config=user)
    assert why in (caught.value.detail or "")


@pytest.mark.parametrize("option", ["", "UserKnownHostsFile /dev/null"])
def test_the_configuration_is_searched_for_bans_of_a_host_only_where_it_sets_files_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    file, ran = tmp_path / "ssh_config", tmp_path / "ran"
    file.write_text(f'Match exec "echo %h >> {ran}"\n  Port 22\nHost *\n  {option}\n')
    revoked = RevokedKeys(UserConfig(file, None))
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        for number in range(3):
            revoked.refuse(SshEndpoint("node", "gpu", f"10.0.0.{number}", 22, "ada", None, KEY))
    assert ran.exists() == bool(option)
