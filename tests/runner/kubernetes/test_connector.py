"""Nodes that are pods: commands, files and ports through an API server that answers as it is told."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit.kubernetes.kubeserver import Answer, Call, KubeServer, Streams, kube_server, pod, run_command, status

from orch.runner.connect import open_connector
from orch.runner.errors import CommandTimeout, HostUnreachable, LoginRefused, PodGone, RunnerError
from orch.runner.kubernetes.connector import KubernetesConnector
from orch.runner.kubernetes.streams import channel as channels
from orch.runner.node_api.commands import Command, StdinSource
from orch.spec.errors import ExitCode
from orch.spec.state import NodeState


def answering(document: Any = None) -> Any:
    """Answers of a cluster that has one pod."""
    return lambda call: Answer(document or pod())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with kube_server(tmp_path) as server:
        server.answer = answering()
        server.stream = run_command
        yield server


@pytest.fixture
def node(server: KubeServer) -> NodeState:
    access = {
        "kind": "kubernetes",
        "kubeconfig": str(server.kubeconfig()),
        "context": "lab",
        "namespace": "space",
        "pod": "p",
        "uid": "u-1",
        "container": "job",
    }
    return NodeState.model_validate(
        {"index": 0, "name": "p", "access": access, "runtime": "process", "internal_ip": "10.0.0.1"}
    )


@pytest.fixture
def connector() -> Iterator[KubernetesConnector]:
    connector = KubernetesConnector(connect_timeout_s=5.0, deadline_s=5.0)
    yield connector
    connector.close()


def test_its_kind_is_known_and_its_address_is_for_people(node: NodeState) -> None:
    connector = open_connector()
    address = connector.address(node)
    assert (str(address), address.place, address.host) == ("pod space/p", "p", None)
    connector.close()
    without = node.model_copy(update={"access": node.access.model_copy(update={"pod": None})})
    with pytest.raises(RunnerError, match="says not which pod"):
        connector.address(without.model_copy(update={"made_for": "gang"}))
    # One that stands for a pod of a run that waits for it.
    with pytest.raises(RunnerError, match="p has no pod: its run has not got it yet"):
        connector.address(without)


def test_output_input_and_exit_code_come_back(connector: KubernetesConnector, node: NodeState) -> None:
    done = connector.run(node, Command("cat; echo oops >&2; exit 3", stdin=b"given"))
    assert (done.stdout, done.stderr, done.exit_code, done.node) == ("given", "oops\n", 3, "p")
    assert connector.run(node, Command("cat; echo end")).stdout == "end\n"
    assert connector.run(node, Command("cat", stdin=b"")).ok


def test_large_input_and_output_flow_at_once(connector: KubernetesConnector, node: NodeState) -> None:
    blocks = [bytes([i]) * (1 << 18) for i in range(80)]
    digest = hashlib.sha256()
    got = 0

    def take(data: bytes) -> None:
        nonlocal got
        got += len(data)
        digest.update(data)

    done = connector.run(node, Command("cat", stdin=StdinSource(blocks), timeout_s=120), on_data=take)
    assert done.ok
    assert (got, digest.digest()) == (80 << 18, hashlib.sha256(b"".join(blocks)).digest())


def test_a_command_that_reads_none_of_its_input_still_ends(
    connector: KubernetesConnector, node: NodeState
) -> None:
    assert connector.run(node, Command("exit 5", stdin=StdinSource([b"x" * (1 << 20)] * 32))).exit_code == 5


def test_a_long_command_travels_before_its_input_and_not_in_the_address(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    text = "\n".join([*(f"a{i}='it'\"'\"'s \\\\n $HOME'" for i in range(2000)), 'printf %s "$a7"', "cat"])
    assert connector.run(node, Command(text, stdin=b"\0rest\n\n")).stdout == "it's \\\\n $HOME\0rest\n\n"
    assert connector.run(node, Command(text)).stdout == "it's \\\\n $HOME"
    assert max(len(text) for call in server.calls for _, text in call.query) < 1000


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100_000, 3 << 20])
def test_a_server_of_the_older_protocol_is_given_inputs_too(
    connector: KubernetesConnector, node: NodeState, server: KubeServer, size: int
) -> None:
    server.protocols = ("v4.channel.k8s.io",)
    content = os.urandom(size)
    pieces = [content[at : at + 70_001] for at in range(0, size, 70_001)]
    got = bytearray()
    done = connector.run(node, Command("cat; exit 4", stdin=StdinSource(pieces)), on_data=got.extend)
    assert (bytes(got) == content, done.exit_code) == (True, 4)
    asked = [call.headers.get("sec-websocket-protocol") for call in server.calls]
    assert connector.run(node, Command("echo again; cat")).stdout == "again\n"
    assert len(server.calls) == len(asked) + 1, "what the server speaks is asked for once"


def test_a_command_that_a_signal_ends_is_told_as_that(
    connector: KubernetesConnector, node: NodeState
) -> None:
    done = connector.run(node, Command("echo before; kill -KILL $$"))
    assert (done.stdout, done.exit_code, done.ending) == ("before\n", 137, "exit code 137 (SIGKILL)")


def test_many_commands_run_at_once(connector: KubernetesConnector, node: NodeState) -> None:
    with ThreadPoolExecutor(16) as pool:
        said = list(
            pool.map(lambda i: connector.run(node, Command(f"sleep 0.2; echo {i}")).stdout, range(32))
        )
    assert said == [f"{i}\n" for i in range(32)]


def test_an_error_while_making_input_is_raised_here(connector: KubernetesConnector, node: NodeState) -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        connector.run(node, Command("cat; sleep 60", stdin=StdinSource(broken())))


def test_lines_arrive_whole_while_the_command_runs_and_it_can_be_left(
    connector: KubernetesConnector, node: NodeState, tmp_path: Path
) -> None:
    taken: list[bytes] = []
    stop = threading.Event()
    mark = tmp_path / "process"

    def take(text: bytes) -> None:
        taken.append(text)
        if text.endswith(b"2\n"):
            stop.set()

    text = f"echo $$ > {mark}; printf '0\\n1'; sleep 0.2; echo; printf 2; sleep 0.2; echo; sleep 300; echo 3"
    done = connector.run(node, Command(text, timeout_s=None), on_lines=take, until=stop)
    assert b"".join(taken) == b"0\n1\n2\n"
    assert all(text.endswith(b"\n") for text in taken)
    assert done.exit_code == -1
    process = int(mark.read_text())

    def began() -> str | None:
        """When the process of that number began; its number may soon be another one's."""
        try:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        except OSError:
            return None

    first = began()
    for _ in range(300):  # nobody waits for it any more, so it ends
        if first is None or began() != first:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the command goes on")


def test_a_command_without_an_end_ends_with_its_own_code(
    connector: KubernetesConnector, node: NodeState
) -> None:
    done = connector.run(node, Command("cat; echo out; echo err >&2; exit 7", timeout_s=None))
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 7)


def test_the_last_line_may_lack_its_end(connector: KubernetesConnector, node: NodeState) -> None:
    taken: list[bytes] = []
    connector.run(node, Command("printf 'a\\nb'"), on_lines=taken.append)
    assert b"".join(taken) == b"a\nb\n"


def test_a_slow_command_is_given_up_after_its_time(connector: KubernetesConnector, node: NodeState) -> None:
    with pytest.raises(CommandTimeout) as caught:
        connector.run(node, Command("sleep 30", "wait a while", timeout_s=0.5))
    assert "wait a while" in (caught.value.detail or "")


def test_who_does_not_take_output_holds_it_up(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    sent = 0
    go_on = threading.Event()

    def flood(call: Call, streams: Streams) -> None:
        nonlocal sent
        for _ in range(1024):
            streams.send(1, b"x" * (1 << 16))
            sent += 1 << 16
        streams.end()

    server.stream = flood
    got = 0

    def take(data: bytes) -> None:
        nonlocal got
        if got == 0:
            last = -1
            while last != sent:  # the server's buffers fill, then it waits
                last = sent
                go_on.wait(0.5)
        got += len(data)

    assert connector.run(node, Command("flood"), on_data=take).ok
    assert got == 64 << 20


def test_files_are_copied_both_ways(connector: KubernetesConnector, node: NodeState, tmp_path: Path) -> None:
    source, there, back = tmp_path / "source", tmp_path / "it's there", tmp_path / "back"
    source.write_bytes(os.urandom(3 << 20))
    connector.send(node, source, str(there))
    connector.receive(node, str(there), back)
    assert there.read_bytes() == back.read_bytes() == source.read_bytes()
    with pytest.raises(RunnerError, match="could not be copied") as caught:
        connector.receive(node, str(tmp_path / "missing"), tmp_path / "none")
    assert "No such file" in (caught.value.detail or "") or "nonexist" in (caught.value.detail or "")
    with pytest.raises(RunnerError):
        connector.send(node, source, str(tmp_path / "no-folder" / "x"))
    with pytest.raises(RunnerError):
        connector.send(node, tmp_path / "missing", str(there))
    assert (
        sorted(path.name for path in tmp_path.iterdir() if "part" in path.name or path.name == "none") == []
    )


GONE: list[tuple[Any, str]] = [
    (pod(uid="u-2"), "another one has its name"),
    (pod(terminated={"reason": "OOMKilled", "exitCode": 137}), "OOMKilled"),
    (
        {
            **pod(terminated={"exitCode": 1}),
            "status": {"phase": "Failed", "reason": "Evicted", "message": "disk"},
        },
        "Evicted",
    ),
]


@pytest.mark.parametrize(("document", "text"), GONE, ids=["replaced", "killed", "evicted"])
def test_a_pod_that_is_no_more_is_told_at_once(
    connector: KubernetesConnector, node: NodeState, server: KubeServer, document: Any, text: str
) -> None:
    server.answer = answering({**document, "metadata": {"uid": "u-1", **document["metadata"]}})
    with pytest.raises(PodGone) as caught:
        connector.run(node, Command("true"), deadline_s=60)
    assert text in caught.value.text()
    assert caught.value.exit_code == ExitCode.HOSTS
    assert caught.value.container_code == (137 if text == "OOMKilled" else None)
    assert len(server.calls) == 1


def test_a_pod_that_is_not_there_is_gone(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    server.answer = lambda call: status(404, "NotFound", 'pods "p" not found', name="p", kind="pods")
    with pytest.raises(PodGone, match="pod space/p is gone") as caught:
        connector.run(node, Command("true"), deadline_s=60)
    assert caught.value.reason == "Deleted"


def of_silent_node(**metadata: str) -> Any:
    """A pod as its cluster has it that hears nothing of the node: its containers run, by their last word."""
    document = pod()
    row = {**document["status"]["containerStatuses"][0], "ready": True}
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-27T01:00:00Z"}]
    return {
        **document,
        "metadata": {**document["metadata"], **metadata},
        "spec": {"nodeName": "gpu-7"},
        "status": {**document["status"], "containerStatuses": [row], "conditions": conditions},
    }


def test_silence_of_a_node_that_its_cluster_has_lost_too_says_so(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    refused = status(500, "InternalError", "error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout")
    server.answer = lambda call: refused if call.path.endswith("/exec") else Answer(of_silent_node())
    with pytest.raises(HostUnreachable) as caught:
        connector.run(node, Command("true"), deadline_s=0)
    assert not isinstance(caught.value, PodGone)
    assert "hears nothing of its node gpu-7 either, since 2026-11-27T01:00:00Z" in (caught.value.detail or "")


def test_a_pod_that_its_cluster_gives_up_with_its_node_is_gone(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    server.answer = answering(of_silent_node(deletionTimestamp="2026-11-27T01:05:00Z"))
    with pytest.raises(PodGone, match="lost with its node") as caught:
        connector.run(node, Command("true"), deadline_s=60)
    assert caught.value.taken
    alive = {**pod(), "metadata": {**pod()["metadata"], "deletionTimestamp": "2026-11-27T01:05:00Z"}}
    server.answer = answering(alive)
    assert connector.run(node, Command("echo saves"), deadline_s=30).stdout == "saves\n"


def test_a_container_that_has_not_started_is_waited_for(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    waiting = pod(waiting={"reason": "ContainerCreating"})
    server.answer = answering(waiting)
    with pytest.raises(HostUnreachable, match="has not started") as caught:
        connector.run(node, Command("true"), deadline_s=0)
    assert not isinstance(caught.value, PodGone)
    assert "ContainerCreating" in caught.value.text()
    rows = [waiting, waiting, pod()]
    server.answer = lambda call: Answer(rows.pop(0) if len(rows) > 1 else rows[0])
    assert connector.run(node, Command("echo now"), deadline_s=30).stdout == "now\n"


def test_a_refused_login_is_told_at_once(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    said = 'pods "p" is forbidden: User "dana" cannot create resource "pods/exec" in API group ""'
    for refused, text in (
        (status(401, "Unauthorized", "Unauthorized"), "does not accept your credentials"),
        (status(403, "Forbidden", said), "dana may not create pods/exec in namespace space"),
    ):
        server.answer = lambda call, refused=refused: (
            refused if call.path.endswith("/exec") else Answer(pod())
        )
        server.calls.clear()
        with pytest.raises(LoginRefused, match="node p cannot be reached") as caught:
            connector.run(node, Command("true"), deadline_s=60)
        assert text in (caught.value.detail or "")
        assert len(server.calls) <= 2


def test_a_missing_kubeconfig_says_nothing_of_the_pod(
    connector: KubernetesConnector, node: NodeState
) -> None:
    elsewhere = node.model_copy(
        update={"access": node.access.model_copy(update={"kubeconfig": "/no/such/config"})}
    )
    with pytest.raises(LoginRefused) as caught:
        connector.run(elsewhere, Command("true"), deadline_s=60)
    assert "the kubeconfig is not there" in (caught.value.detail or "")


def test_a_cluster_that_does_not_answer_is_tried_again_within_the_deadline(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    answers = [Answer(b"", 503), Answer(pod()), status(500, "InternalError", "error dialing backend: EOF")]
    server.answer = lambda call: answers.pop(0) if answers else Answer(pod())
    assert connector.run(node, Command("echo back"), deadline_s=30).stdout == "back\n"
    server.close()
    with pytest.raises(HostUnreachable, match="node p cannot be reached") as caught:
        connector.run(node, Command("true"), deadline_s=1.0, connect_timeout_s=0.5)
    assert not isinstance(caught.value, (LoginRefused, PodGone))


def test_a_kubelet_that_is_not_there_is_told_and_nothing_is_run_twice(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    began: list[str] = []

    def break_off(call: Call, streams: Streams) -> None:
        began.append("once")
        streams.send(1, b"half a li")
        streams.socket.shutdown(socket.SHUT_RDWR)

    server.stream = break_off
    lines: list[bytes] = []
    with pytest.raises(HostUnreachable, match="lost during a command"):
        connector.run(node, Command("work"), deadline_s=30, on_lines=lines.append)
    assert (began, lines) == (["once"], [])

    def never(call: Call, streams: Streams) -> None:
        began.append("never")
        if len(began) > 2:
            run_command(call, streams)
            return
        message = 'unable to upgrade connection: container not found ("job")'
        streams.send(
            3, json.dumps({"status": "Failure", "reason": "InternalError", "message": message}).encode()
        )
        streams.close()

    server.stream = never
    assert connector.run(node, Command("echo yes"), deadline_s=30).stdout == "yes\n"
    assert began == ["once", "never", "never"]


def test_a_pod_that_is_deleted_in_the_middle_is_told_as_that(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    def delete(call: Call, streams: Streams) -> None:
        streams.send(1, b"one\n")
        server.answer = lambda call: status(404, "NotFound", 'pods "p" not found', name="p")
        streams.socket.shutdown(socket.SHUT_RDWR)

    server.stream = delete
    with pytest.raises(PodGone, match="pod space/p is gone"):
        connector.run(node, Command("work", timeout_s=None))


def test_a_silent_connection_is_given_up(
    connector: KubernetesConnector, node: NodeState, server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "PING_S", 0.2)
    monkeypatch.setattr(channels, "SILENT_S", 0.6)
    over = threading.Event()
    server.stream = lambda call, streams: over.wait(60) and None
    with pytest.raises(HostUnreachable, match="lost during a command") as caught:
        connector.run(node, Command("sleep", timeout_s=None))
    assert "no ping was answered" in (caught.value.detail or "")
    over.set()


def test_a_quiet_command_is_not_given_up(
    connector: KubernetesConnector, node: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "PING_S", 0.2)
    monkeypatch.setattr(channels, "SILENT_S", 0.8)
    assert connector.run(node, Command("cat >/dev/null; sleep 2; echo yes", stdin=b"")).stdout == "yes\n"


def test_a_command_that_takes_its_input_late_is_not_given_up(
    connector: KubernetesConnector, node: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "PING_S", 0.2)
    monkeypatch.setattr(channels, "SILENT_S", 0.6)
    blocks = StdinSource([b"x" * (1 << 20)] * 24)
    assert connector.run(node, Command("sleep 3; wc -c", stdin=blocks)).stdout.strip() == str(24 << 20)


def test_dropping_a_node_ends_what_waits_for_it(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    began = threading.Event()

    def stall(call: Call, streams: Streams) -> None:
        streams.send(1, b"here\n")
        for _ in streams.messages():
            pass

    server.stream = stall
    errors: list[BaseException] = []

    def work() -> None:
        try:
            connector.run(node, Command("wait", timeout_s=None), on_lines=lambda _: began.set())
        except HostUnreachable as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(30)
    connector.drop(node)
    thread.join(30)
    assert len(errors) == 1
    server.stream = run_command
    assert connector.run(node, Command("echo on")).stdout == "on\n"
    connector.hang_up()
    assert connector.run(node, Command("echo on")).stdout == "on\n"


def echo_port(call: Call, streams: Streams) -> None:
    """A port of a pod that says each piece again, and closes after `bye`."""
    number = struct.pack("<H", int(call.words["ports"]))
    for stream in (0, 1):
        streams.send(stream, number)
    if call.words["ports"] == "81":
        streams.send(1, b"connection refused")
        streams.close()
        return
    for stream, content in streams.messages():
        streams.send(stream, content)
        if content.endswith(b"bye"):
            streams.close()
            return


def said(port: int, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.settimeout(60)
        got = b""
        with_all = b"".join(pieces)

        def send() -> None:
            for piece in pieces:
                client.sendall(piece)

        sender = threading.Thread(target=send)
        sender.start()
        while data := client.recv(1 << 16):
            got += data
        sender.join()
        assert len(got) in (0, len(with_all))
        return got


def test_a_port_of_a_pod_is_a_port_here(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    server.stream = echo_port
    big = os.urandom(2 << 20) + b"bye"
    with connector.forward(node, 8000) as port, ThreadPoolExecutor(8) as pool:
        assert said(port, b"hello ", b"bye") == b"hello bye"
        assert set(pool.map(lambda _: said(port, big) == big, range(8))) == {True}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    listener = socket.create_server(("127.0.0.1", 0))
    with connector.forward(node, 81, listener=listener) as port:
        assert port == listener.getsockname()[1]
        assert said(port) == b""
    with connector.forward(node, 8000) as port:
        assert said(port, b"bye") == b"bye"


def test_a_port_whose_pod_is_gone_closes_its_clients(
    connector: KubernetesConnector, node: NodeState, server: KubeServer
) -> None:
    server.stream = echo_port
    with connector.forward(node, 8000) as port:
        server.answer = lambda call: status(404, "NotFound", "no", name="p")
        assert said(port) == b""
        server.answer = answering()
        assert said(port, b"bye") == b"bye"
