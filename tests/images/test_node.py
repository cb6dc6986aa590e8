"""A real node container, started as images/node/README.md says: SSH, Docker of its own, limits, restarts."""

from __future__ import annotations

import io
import socket
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from orch.images import ensure, tag

MEMORY_MIB = 512
CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "IPC_LOCK", "SYS_NICE")


def run(*command: str, data: bytes | None = None, timeout_s: float = 60) -> str:
    done = subprocess.run(command, input=data, capture_output=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}: {done.stderr.decode()}"
    return done.stdout.decode().strip()


def until(true: Callable[[], bool], what: str, within_s: float = 60) -> float:
    """Seconds until it was true; fails the test when it never was."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < within_s, f"not within {within_s} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - started


@dataclass(frozen=True)
class Node:
    name: str
    folder: Path

    def ssh(
        self, *words: str, data: bytes | None = None, options: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        port = run("docker", "port", self.name, "22/tcp").rpartition(":")[2]
        return subprocess.run(
            [
                *("ssh", "-F", "/dev/null", "-i", str(self.folder / "id"), "-p", port, "-o", "BatchMode=yes"),
                *("-o", f"UserKnownHostsFile={self.folder / 'known_hosts'}", "-o", "HostKeyAlias=node"),
                *("-o", "StrictHostKeyChecking=yes", "-o", "GlobalKnownHostsFile=/dev/null", *options),
                *("root@127.0.0.1", *words),
            ],
            input=data,
            capture_output=True,
            timeout=120,
            check=False,
        )

    def text(self, *words: str) -> str:
        done = self.ssh(*words)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def ready(self) -> bool:
        return self.ssh("docker version").returncode == 0


def key(path: Path) -> str:
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path))
    return path.with_suffix(".pub").read_text().strip()


def first_files(host_key: bytes, authorized: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in (
            ("etc/ssh/ssh_host_ed25519_key", host_key),
            ("etc/orch/authorized_keys", authorized),
        ):
            member = tarfile.TarInfo(path)
            member.size = len(data)
            member.mode = 0o600
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def create(name: str, network: str) -> None:
    run(
        *(
            "docker",
            "create",
            "--name",
            name,
            "--hostname",
            name,
            "--network",
            network,
            "--label",
            "orch.test=1",
        ),
        *("--cgroupns", "private", "--security-opt", "seccomp=unconfined"),
        *("--security-opt", "apparmor=unconfined", "--publish", "127.0.0.1::22"),
        *("--memory", f"{MEMORY_MIB}m", "--memory-swap", f"{MEMORY_MIB}m", "--env", "ORCH_NODE_CPUS=1"),
        *(word for capability in CAPABILITIES for word in ("--cap-add", capability)),
        tag("node"),
    )


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    ensure("node", progress=print)
    name = f"orch-test-{uuid.uuid4().hex[:8]}"
    run("docker", "network", "create", "--label", "orch.test=1", name)
    yield name
    run("docker", "network", "rm", name)


@pytest.fixture(scope="module")
def node(network: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    host = key(folder / "host")
    (folder / "known_hosts").write_text(f"node {host}\n")
    authorized = key(folder / "id")
    name = f"{network}-node"
    create(name, network)
    run(
        "docker",
        "cp",
        "-",
        f"{name}:/",
        data=first_files((folder / "host").read_bytes(), authorized.encode()),
    )
    run("docker", "start", name)
    made = Node(name, folder)
    until(made.ready, "SSH and the nested Docker answer")
    yield made
    run("docker", "rm", "--force", "--volumes", name)


@pytest.fixture(scope="module")
def image(node: Node) -> str:
    """The small job image, carried into the node as the runner does it."""
    reference = ensure("mpi", progress=print)
    saved = subprocess.run(["docker", "save", reference], capture_output=True, check=True).stdout
    done = node.ssh("docker load", data=saved)
    assert done.returncode == 0, done.stderr.decode()
    return reference


def test_ssh_answers_with_the_host_key_that_was_copied_in(node: Node) -> None:
    assert node.text("hostname") == node.name


def test_another_host_key_is_noticed(node: Node, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text(f"node {key(tmp_path / 'other')}\n")
    refused = Node(node.name, tmp_path).ssh("true")
    assert refused.returncode == 255
    assert b"REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_passwords_are_not_asked_for(node: Node) -> None:
    done = node.ssh("true", options=("-o", "PubkeyAuthentication=no", "-v"))
    assert done.returncode == 255
    assert b"Permission denied (publickey)" in done.stderr


def test_the_tools_the_runner_uses_are_there(node: Node) -> None:
    for tool in ("bash", "python3", "ps", "ip", "iptables", "docker", "flock", "timeout", "setsid", "tar"):
        assert node.text(f"command -v {tool}")


def test_only_root_can_look_into_the_runner_s_folder(node: Node) -> None:
    assert node.text("stat -c '%a %U' /var/lib/orch") == "700 root"


def test_what_the_node_was_told_about_itself_is_seen_over_ssh(node: Node) -> None:
    assert node.text("echo $ORCH_NODE_CPUS") == "1"


def test_forty_sessions_open_at_once(node: Node) -> None:
    port = run("docker", "port", node.name, "22/tcp").rpartition(":")[2]
    doors = [socket.create_connection(("127.0.0.1", int(port)), timeout=60) for _ in range(40)]
    try:
        assert all(door.recv(8).startswith(b"SSH-2.0") for door in doors)
    finally:
        for door in doors:
            door.close()


def test_the_nested_docker_is_another_than_this_machine_s(node: Node) -> None:
    assert node.text("docker info --format '{{.ID}}'") != run("docker", "info", "--format", "{{.ID}}")
    assert node.name not in node.text("docker ps --all --format '{{.Names}}'")


def test_a_job_runs_with_the_node_s_address(node: Node, image: str) -> None:
    address = run(
        "docker", "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", node.name
    )
    assert address in node.text(f"docker run --rm --network host {image} ip -4 -o address")


def test_a_job_s_memory_limit_holds(node: Node, image: str) -> None:
    node.ssh(
        f"docker run --name greedy --memory 64m --memory-swap 64m {image} python -c 'bytearray(256 << 20)'"
    )
    assert node.text("docker inspect --format '{{.State.OOMKilled}}' greedy") == "true"
    node.text("docker rm greedy")


def test_the_node_s_memory_limit_holds_for_its_jobs(node: Node, image: str) -> None:
    size = MEMORY_MIB + 256
    done = node.ssh(f"docker run --rm {image} python -c 'print(len(bytearray({size} << 20)))'")
    assert done.returncode != 0
    until(node.ready, "the node lives on")


def test_a_restart_keeps_key_images_and_files_and_ends_jobs(node: Node, image: str) -> None:
    node.text(f"docker run --detach --name sleeper --network host {image} sleep 600")
    node.text("echo kept > /var/lib/orch/file")
    run("docker", "restart", "--time", "3", node.name)
    until(node.ready, "SSH and Docker answer after a restart")
    assert node.text("cat /var/lib/orch/file") == "kept"
    assert node.text(f"docker image inspect --format '{{{{.RepoTags}}}}' {image}") == f"[{image}]"
    assert (
        node.text("docker inspect --format '{{.State.Status}} {{.State.Running}}' sleeper") == "exited false"
    )
    assert node.text(f"docker run --rm {image} echo works") == "works"
    node.text("docker rm sleeper")


def test_a_killed_node_comes_back(node: Node, image: str) -> None:
    node.text(f"docker run --detach --name sleeper --network host {image} sleep 600")
    run("docker", "kill", node.name)
    run("docker", "start", node.name)
    until(node.ready, "SSH and Docker answer after a kill")
    assert node.text("docker inspect --format '{{.State.Running}}' sleeper") == "false"
    assert node.text(f"docker run --rm {image} echo works") == "works"
    node.text("docker rm sleeper")


def test_a_node_without_keys_says_what_is_missing(network: str) -> None:
    name = f"{network}-bare"
    create(name, network)
    try:
        run("docker", "start", name)
        assert run("docker", "wait", name) == "78"
        logs = subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=True).stderr
        assert "ssh_host_ed25519_key is missing" in logs
    finally:
        run("docker", "rm", "--force", "--volumes", name)
