"""What keeps a log-in from happening, each cause told in its own words, against real servers."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.hostlab import PASSPHRASE, Room
from kit.nodes.labmachine import Key

from orch.runner.errors import (
    ForwardingRefused,
    HostKeyRefused,
    HostUnreachable,
    JumpUnreachable,
    LoginRefused,
)
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import fan_out
from orch.runner.ssh.connect import dial_command
from orch.runner.ssh.endpoint import of_node
from orch.runner.ssh.pool import SshConnector
from orch.runner.ssh.protocol import handshake_failed
from orch.spec.state import NodeState

ID = Command("id -un")


@pytest.fixture
def transport() -> Iterator[SshConnector]:
    transport = SshConnector(connect_timeout_s=6.0, deadline_s=0)
    yield transport
    transport.close()


@pytest.fixture(autouse=True)
def nobodys_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent and no key files of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def node(room: Room) -> NodeState:
    return room.servers[0].state(0)


@pytest.fixture
def hidden(room: Room) -> NodeState:
    """A node that only the jump host reaches."""
    return room.servers[3].state(0, through=(room.login,))


def with_key(node: NodeState, key: Key | Path | str | None) -> NodeState:
    path = str(key.path) if isinstance(key, Key) else None if key is None else str(key)
    return node.reached(identity=path)


def at_jump(node: NodeState, **changed: object) -> NodeState:
    return node.reached(jump=(node.ssh.jump[0].model_copy(update=changed),))


@pytest.fixture(scope="module", params=["ed25519", "ecdsa", "rsa"])
def locked(room: Room, request: pytest.FixtureRequest) -> Key:
    """An encrypted key of each kind that opens the servers."""
    key = room.lab.new_key(f"locked-{request.param}", kind=request.param, passphrase=PASSPHRASE)
    for server in room.servers:
        server.authorize(key)
    return key


def test_keys_of_all_kinds_log_in(room: Room, node: NodeState, transport: SshConnector):
    for kind in ("ed25519", "ecdsa", "rsa"):
        key = room.lab.new_key(f"plain-{kind}", kind=kind)
        room.servers[0].authorize(key)
        named = node.reached(identity=str(key.path)).model_copy(update={"name": kind})
        assert transport.run(named, ID).stdout == "ops\n"


def test_an_encrypted_key_works_when_the_agent_has_it(
    room: Room, node: NodeState, locked: Key, transport: SshConnector, monkeypatch: pytest.MonkeyPatch
):
    with room.lab.agent(room.lab.new_key(f"other-{locked.path.name}"), locked) as env:
        monkeypatch.setenv("SSH_AUTH_SOCK", env["SSH_AUTH_SOCK"])
        assert transport.run(with_key(node, locked), ID).stdout == "ops\n"
        # Its public half alone is as good: the agent does the rest.
        assert transport.run(with_key(node, locked.path.with_suffix(".pub")), ID).ok


def test_an_encrypted_key_that_the_agent_lacks_is_told_with_the_remedy(
    room: Room, node: NodeState, locked: Key, transport: SshConnector, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(LoginRefused, match="is encrypted and not in the SSH agent") as caught:
        transport.run(with_key(node, locked), ID)
    assert caught.value.hint == f"ssh-add {locked.path}"
    with room.lab.agent(room.lab.key) as env:
        monkeypatch.setenv("SSH_AUTH_SOCK", env["SSH_AUTH_SOCK"])
        with pytest.raises(LoginRefused, match="is encrypted and not in the SSH agent"):
            SshConnector().run(with_key(node, locked), ID)


def test_old_encrypted_key_files_are_recognised_too(
    room: Room, node: NodeState, tmp_path: Path, transport: SshConnector, monkeypatch: pytest.MonkeyPatch
):
    for form in ("PEM", "PKCS8"):
        path = tmp_path / f"old-{form}"
        words = ["ssh-keygen", "-q", "-t", "rsa", "-m", form, "-N", PASSPHRASE, "-f", str(path)]
        subprocess.run(words, check=True)
        with pytest.raises(LoginRefused, match="is encrypted"):
            transport.run(with_key(node, path), ID)
        key = Key(path, path.with_suffix(".pub").read_text().strip())
        room.servers[0].authorize(key)
        with room.lab.agent(key) as env, monkeypatch.context() as patched:
            patched.setenv("SSH_AUTH_SOCK", env["SSH_AUTH_SOCK"])
            assert transport.run(with_key(node, path).model_copy(update={"name": form}), ID).ok


def test_without_a_key_the_agent_and_the_users_own_files_are_tried(
    room: Room, node: NodeState, tmp_path: Path, transport: SshConnector, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(LoginRefused) as caught:
        transport.run(with_key(node, None), ID)
    assert "there is no key to try" in (caught.value.detail or "")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_text(new_key_pair().private)
    with pytest.raises(LoginRefused) as caught:
        transport.run(with_key(node, None), ID)
    assert caught.value.detail == "tried ~/.ssh/id_ed25519"
    with room.lab.agent(room.lab.key) as env:
        monkeypatch.setenv("SSH_AUTH_SOCK", env["SSH_AUTH_SOCK"])
        asked = SshConnector()
        assert asked.run(with_key(node, None), ID).ok
        asked.close()
    (tmp_path / ".ssh" / "id_ed25519").write_text(room.lab.key.path.read_text())
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    assert SshConnector().run(with_key(node, None), ID).ok


def test_the_agent_that_the_users_configuration_names_is_asked(
    room: Room, node: NodeState, tmp_path: Path, transport: SshConnector
):
    (tmp_path / ".ssh").mkdir()
    with room.lab.agent(room.lab.key) as env:
        config = f"Host {node.name}\n IdentityAgent {env['SSH_AUTH_SOCK']}\n"
        (tmp_path / ".ssh" / "config").write_text(config)
        assert transport.run(with_key(node, None), ID).stdout == "ops\n"
    (tmp_path / ".ssh" / "config").write_text("Host *\n Port nonsense\n")
    with pytest.raises(LoginRefused, match="refuses the login"):
        SshConnector().run(with_key(node, None), ID)


def test_a_key_file_that_is_none_is_told(node: NodeState, tmp_path: Path, transport: SshConnector):
    (tmp_path / "text").write_text("just text\n")
    (tmp_path / "broken").write_text(
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    (tmp_path / "public").write_text(new_key_pair().public)
    for name, summary, detail in (
        ("not-there", "is not here", ""),
        (".", "cannot be read", "Is a directory"),
        ("text", "is not usable", "not a private key"),
        ("broken", "is not usable", "not a private key that can be used"),
        ("public", "is not usable", "the public half"),
    ):
        with pytest.raises(LoginRefused, match=summary) as caught:
            transport.run(with_key(node, tmp_path / name), ID)
        assert detail in (caught.value.detail or "")
        assert str(tmp_path) in (caught.value.where or "")


def test_a_wrong_user_and_a_wrong_key_tell_what_was_tried(
    node: NodeState, tmp_path: Path, transport: SshConnector
):
    with pytest.raises(LoginRefused, match="node gpu1 refuses the login of nobody") as caught:
        transport.run(node.reached(user="nobody"), ID)
    assert node.ssh.identity in (caught.value.detail or "")
    assert "~nobody/.ssh/authorized_keys" in (caught.value.hint or "")
    other = tmp_path / "other"
    other.write_text(new_key_pair().private)
    with pytest.raises(LoginRefused) as caught:
        transport.run(with_key(node, other), ID)
    assert caught.value.detail == f"tried {other}"


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """The port of a server whose queue is full: connections are never answered."""
    with socket.socket() as server, contextlib.ExitStack() as held:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@contextlib.contextmanager
def closing(*words: bytes) -> Iterator[int]:
    """The port of a server that says something to everybody and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = server.accept()
                    with link:
                        link.sendall(b"".join(words))
                        link.shutdown(socket.SHUT_WR)
                        link.recv(1000)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def failure(transport: SshConnector, node: NodeState, **changed: object) -> HostUnreachable:
    with pytest.raises(HostUnreachable) as caught:
        transport.run(node.reached(**changed), ID)
    assert f"node {node.name} cannot be reached" in caught.value.summary
    assert caught.value.hint
    return caught.value


def test_each_way_not_to_answer_has_its_own_words(room: Room, node: NodeState, transport: SshConnector):
    assert "port 9 of 127.0.0.1 refuses connections" in str(failure(transport, node, port=9).detail)
    told = failure(transport, node, address="no-such-host.invalid")
    assert "the name no-such-host.invalid does not resolve" in str(told.detail)
    unused = room.front.gateway.rpartition(".")[0] + ".250"
    far = SshConnector(connect_timeout_s=8.0, deadline_s=0)
    told = failure(far, node, address=unused, port=22)
    assert "no route" in str(told.detail) or "does not answer" in str(told.detail)
    with deaf() as port:
        # What came before the attempt counts: a few milliseconds at least.
        told = failure(transport, node, port=port)
        assert re.search(r"does not answer within (6|5\.\d+) s", str(told.detail))
    with closing(b"220 mail ESMTP\r\n") as port:
        told = failure(transport, node, port=port)
        assert "is not an SSH server" in str(told.detail)
        assert "220 mail ESMTP" in str(told.detail)
    with closing() as port:
        assert "closes the connection before" in str(failure(transport, node, port=port).detail)
    with closing(b"Exceeded MaxStartups\r\n") as port:
        assert "takes no more log-ins right now" in str(failure(transport, node, port=port).detail)
    told = failure(transport, node, proxy_command="echo no such tunnel >&2; exit 3")
    assert "the proxy command of node gpu1" in str(told.detail)
    assert "no such tunnel" in str(told.detail)


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError("Broken pipe"), ConnectionResetError("reset")])
def test_a_proxy_command_that_ends_before_our_greeting_is_sent_is_told_too(node: NodeState, error: Exception):
    """Whether the read or the write fails first is chance."""
    stream = dial_command("echo no such tunnel >&2; exit 3", node.ssh.address, 22, "root")
    stream.recv(1)
    told = handshake_failed(of_node(node), error, transport=None, stream=stream, slow=False)
    stream.close()
    assert "proxy command" in told.summary
    assert told.detail == "no such tunnel"


def test_a_changed_host_key_names_the_host_and_how_to_accept_it(room: Room, node: NodeState):
    with room.servers[0].other_host_key(), pytest.raises(HostKeyRefused) as caught:
        SshConnector().run(node, ID)
    assert caught.value.code == "ORCH363"
    assert "orch up FILE --accept-host-key gpu1" in (caught.value.hint or "")


def test_a_jump_host_that_fails_is_named_and_tried_once_for_all_behind_it(hidden: NodeState):
    transport = SshConnector(connect_timeout_s=2.0, deadline_s=0)
    nodes = [at_jump(hidden, port=9).model_copy(update={"name": f"n{i}"}) for i in range(20)]
    for result in fan_out(nodes, lambda node: transport.run(node, ID)):
        assert isinstance(result.error, JumpUnreachable)
        assert result.error.summary == "jump host 127.0.0.1 cannot be reached"
        assert "port 9 of 127.0.0.1 refuses connections" in (result.error.detail or "")
    with deaf() as port:
        began = time.monotonic()
        nodes = [at_jump(node, port=port) for node in nodes]
        assert not any(r.ok for r in fan_out(nodes, lambda node: transport.run(node, ID)))
        assert time.monotonic() - began < 20, "twenty nodes waited for one attempt, not for twenty"


def test_a_jump_host_that_refuses_us_is_named(hidden: NodeState, tmp_path: Path, transport: SshConnector):
    other = tmp_path / "other"
    other.write_text(new_key_pair().private)
    with pytest.raises(LoginRefused, match=r"jump host 127\.0\.0\.1 refuses the login of guest"):
        transport.run(at_jump(hidden, identity=str(other)), ID)
    with pytest.raises(LoginRefused, match=r"the private key for jump host 127\.0\.0\.1 is not here"):
        transport.run(at_jump(hidden, identity="/not/there"), ID)
    with pytest.raises(HostKeyRefused, match=r"the host key of jump host 127\.0\.0\.1 is not the pinned one"):
        transport.run(at_jump(hidden, host_key=new_key_pair().public), ID)


def test_a_jump_host_that_forwards_nothing_is_told_at_once(room: Room, hidden: NodeState):
    transport = SshConnector(deadline_s=60.0)
    began = time.monotonic()
    with room.login.no_forwarding(), pytest.raises(ForwardingRefused, match="jump host") as caught:
        transport.run(hidden, ID)
    assert time.monotonic() - began < 20, "waiting would not help"
    assert "AllowTcpForwarding" in (caught.value.hint or "")
    transport.close()


def test_a_node_that_the_jump_host_cannot_reach_is_told_as_such(hidden: NodeState, transport: SshConnector):
    told = failure(transport, hidden, port=9)
    assert f"jump host 127.0.0.1 cannot reach port 9 of {hidden.ssh.address}" in str(told.detail)
    told = failure(transport, hidden, address="no-such-host.invalid")
    assert "jump host 127.0.0.1 cannot reach port 22 of no-such-host.invalid" in str(told.detail)


def test_forty_nodes_behind_one_jump_host_share_a_connection_and_none_is_lost(room: Room, hidden: NodeState):
    # Eight at once is ours; a stock sshd drops some from the eleventh on. Whom it has let in it may count for
    # a moment more.
    nodes = [hidden.model_copy(update={"name": f"n{i}"}) for i in range(40)]
    transport = SshConnector(connect_timeout_s=60.0, deadline_s=0)
    with room.servers[3].log_ins(16):
        results = fan_out(nodes, lambda node: transport.run(node, ID).stdout)
    assert [result.value for result in results] == ["ops\n"] * 40
    sessions = room.login.run("pgrep -fc '^sshd: guest .priv'")
    transport.close()
    assert int(sessions) == 1
