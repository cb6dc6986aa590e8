"""A person's shell in a pod, as the program that `terminal` and `command_line` name."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.kubernetes.kubescreen import WAIT_S, Screen
from kit.kubernetes.kubeserver import Answer, KubeServer, Streams, kube_server, pod, run_command, status

from orch.runner.errors import RunnerError
from orch.runner.kubernetes.connector import KubernetesConnector
from orch.spec.state import NodeState


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with kube_server(tmp_path) as server:
        server.answer = lambda call: Answer(pod())
        server.stream = run_command
        yield server


@pytest.fixture
def node(server: KubeServer) -> NodeState:
    access = {"kind": "kubernetes", "kubeconfig": str(server.kubeconfig()), "namespace": "space", "pod": "p"}
    return NodeState.model_validate({"index": 0, "name": "p", "access": access})


@pytest.fixture
def connector() -> Iterator[KubernetesConnector]:
    connector = KubernetesConnector()
    yield connector
    connector.close()


def test_a_shell_has_a_terminal_of_the_size_of_ours_and_its_exit_code(
    connector: KubernetesConnector, node: NodeState, tmp_path: Path
) -> None:
    screen = Screen(connector.terminal(node, tmp_path / "ssh", ()))
    screen.type("PS1='pro''mpt>'; echo size $(stty size) term $TERM; echo mark\n")
    screen.shows("size 33 91 term")
    screen.resize(20, 60)
    os.kill(screen.process.pid, signal.SIGWINCH)
    screen.type("while [ \"$(stty size)\" != '20 60' ]; do sleep 0.1; done; echo re''sized\n")
    screen.shows("resized")
    assert not screen.cooked()
    screen.type("echo run''ning; cat\n")
    screen.shows("running")
    screen.text = b""
    screen.type("\x03")  # the key, not a signal to the program here
    screen.shows("prompt>")
    screen.type("echo still''here\n")
    screen.shows("stillhere")
    screen.type("exit 7\n")
    assert screen.code() == 7
    assert screen.cooked()
    screen.close()


def test_words_are_a_command_in_place_of_a_shell(
    connector: KubernetesConnector, node: NodeState, tmp_path: Path
) -> None:
    words = connector.terminal(node, tmp_path / "ssh", ("--", "cat;", "echo", "bad", ">&2;", "exit", "3"))
    done = subprocess.run(words, input=b"\0binary\n", capture_output=True, timeout=WAIT_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"\0binary\n", b"bad\n", 3)
    with pytest.raises(RunnerError, match="not reached by ssh"):
        connector.terminal(node, tmp_path / "ssh", ("-L", "80:localhost:80"))
    (file,) = (tmp_path / "ssh").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_text_of_any_length_has_this_programs_streams(
    connector: KubernetesConnector, node: NodeState, tmp_path: Path
) -> None:
    text = "\n".join([*(f"v{i}={i}" for i in range(3000)), "echo $v2999", "cat"])
    words = connector.command_line(node, tmp_path / "ssh", text, terminal=False)
    assert all("\n" not in word for word in words)
    content = os.urandom(1 << 20)
    done = subprocess.run(words, input=content, capture_output=True, timeout=WAIT_S, check=False)
    assert (done.stdout == b"2999\n" + content, done.stderr, done.returncode) == (True, b"", 0)
    other = connector.command_line(node, tmp_path / "ssh", "echo other", terminal=False)
    assert (
        subprocess.run(words, input=b"", capture_output=True, timeout=WAIT_S, check=False).stdout == b"2999\n"
    )
    assert subprocess.run(other, capture_output=True, timeout=WAIT_S, check=False).stdout == b"other\n"


def test_it_leads_to_the_same_cluster_from_anywhere(
    connector: KubernetesConnector,
    node: NodeState,
    tmp_path: Path,
    server: KubeServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    given = node.model_copy(update={"access": node.access.model_copy(update={"kubeconfig": "config"})})
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))
    own = node.model_copy(update={"access": node.access.model_copy(update={"kubeconfig": None})})
    for each, folder in ((given, "given"), (own, "own")):
        words = connector.command_line(each, Path("ssh") / folder, "echo here", terminal=False)
        clean = {name: text for name, text in os.environ.items() if name != "KUBECONFIG"}
        done = subprocess.run(
            words, cwd=tmp_path / "elsewhere", env=clean, input=b"", capture_output=True, check=False
        )
        assert (done.stdout, done.stderr) == (b"here\n", b"")


def test_a_terminal_that_is_none_is_not_asked_for(
    connector: KubernetesConnector, node: NodeState, tmp_path: Path, server: KubeServer
) -> None:
    words = connector.command_line(node, tmp_path / "ssh", "cat; tty; exit 4", terminal=True)
    done = subprocess.run(words, input=b"in\n", capture_output=True, timeout=WAIT_S, check=False)
    assert (done.stdout, done.returncode) == (b"in\nnot a tty\n", 4)


def test_a_pod_that_is_gone_is_told_with_sshs_code(
    connector: KubernetesConnector, node: NodeState, tmp_path: Path, server: KubeServer
) -> None:
    words = connector.command_line(node, tmp_path / "ssh", "echo", terminal=False)
    server.answer = lambda call: status(404, "NotFound", "no", name="p")
    done = subprocess.run(words, capture_output=True, timeout=WAIT_S, check=False)
    assert (done.stdout, done.returncode) == (b"", 255)
    assert done.stderr.startswith(b"pod space/p: error: pod space/p is gone\n")

    def lose(call: object, streams: Streams) -> None:
        streams.send(1, b"some\n")

    server.answer, server.stream = lambda call: Answer(pod()), lose
    done = subprocess.run(words, capture_output=True, timeout=WAIT_S, check=False)
    assert (done.stdout, done.returncode) == (b"some\n", 255)
    assert b"was lost" in done.stderr


def test_a_reader_that_goes_ends_it(connector: KubernetesConnector, node: NodeState, tmp_path: Path) -> None:
    words = connector.command_line(node, tmp_path / "ssh", "while :; do echo more; done", terminal=False)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"more\n"
    process.stdout.close()
    assert process.wait(WAIT_S) == 128 + signal.SIGPIPE


def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(
    connector: KubernetesConnector, node: NodeState, tmp_path: Path
) -> None:
    words = connector.command_line(node, tmp_path / "ssh", "echo be''gun; sleep 300", terminal=True)
    screen = Screen(words)
    screen.shows("begun")
    os.kill(screen.process.pid, signal.SIGTERM)
    assert screen.code() == 255
    assert screen.cooked()
    screen.close()
