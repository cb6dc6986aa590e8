"""What several suites use: the command line as a user calls it, projects in folders of their own, processes
and containers."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.engine.forkserver import ForkCalls, anew, server_of
from orch.stacks.project.project import find, scope_of

ROOT = Path(__file__).resolve().parents[2]
ORCH = [str(Path(sys.executable).parent / "orch")]


def fork_server() -> ForkCalls:
    """One for all processes of tests, from the first call of the command line on."""
    return server_of()


def code_of(script: Path) -> str:
    """Code that runs a script of the tests, for a process that is forked."""
    return (
        f"import runpy, sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )


@dataclass(frozen=True)
class Said:
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Started:
    """A process that was forked and goes on, as subprocess.Popen tells it. It says less than a pipe holds."""

    def __init__(self, code: str, words: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        streams = (os.open(os.devnull, os.O_RDONLY), to_out, to_err)
        self._forked = fork_server().start(code, words, environment, streams, folder)
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self.returncode: int | None = None

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()
        self.stdout.close()
        self.stderr.close()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. It is killed when it does not end in time."""
        if self.returncode is None:
            self.returncode = self._forked.wait(timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it says from here to its end, on both streams."""
        self.wait(timeout)
        with self:
            return self.stdout.read(), self.stderr.read()

    def _signal(self, number: int) -> None:
        if self.returncode is None:
            self._forked.send_signal(number)


@dataclass(frozen=True)
class Folder:
    """A project in a folder, and the command line in it."""

    path: Path

    def orch(self, *words: str, env: dict[str, str] | None = None, timeout: float = 300) -> Said:
        environment = {**os.environ, **(env or {})}
        if not anew(words, environment):
            return Said(*fork_server().call([*ORCH, *words], self.path, environment, timeout))
        done = subprocess.run(
            [*ORCH, *words],
            cwd=self.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same without waiting, in a session of its own so that a signal reaches it alone."""
        return subprocess.Popen(
            [*ORCH, *words],
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell's background jobs ignore SIGINT, and so would what a test starts in one.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )

    def write(self, name: str, text: str) -> str:
        (self.path / name).write_text(text)
        return name


def fleet_yaml(name: str, nodes: int, more: str = "") -> str:
    head = f"type: fleet\nname: {name}\nbackend: local\nplacement: cluster\n"
    return f"{head}nodes: {nodes}\nresources: {{memory: 1GB}}\n{more}"


def record_fleet(
    folder: Folder, name: str, *, rehearsed: bool = False, resources: Sequence[Mapping[str, Any]] = ()
) -> None:
    """What the engine would have recorded of a fleet of a project `lab`, with more resources."""
    dot = folder.path / ".orch"
    place = (dot / "rehearsal" if rehearsed else dot) / "state" / ".pulumi" / "stacks" / "lab"
    place.mkdir(parents=True, exist_ok=True)
    for made in (dot, *(each for each in place.parents if dot in each.parents), place):
        made.chmod(0o700)
    fleet = {
        "name": name,
        "backend": "local",
        "placement": "any",
        "nodes": [],
        "scope": "000000",
        "network": "n",
        "interconnect": "ethernet",
    }
    stack = {"type": "pulumi:pulumi:Stack", "urn": "urn", "outputs": {"fleet": fleet}}
    (place / f"{name}.json").write_text(
        json.dumps({"checkpoint": {"latest": {"resources": [stack, *resources]}}})
    )


def containers(folder: Folder, fleet: str) -> dict[str, str]:
    """Node containers of a project's fleet: name -> state. Other tests may have a fleet of the same name."""
    listed = docker("ps", "-a", "--filter", _named(folder, fleet), "--format", "{{.Names}} {{.State}}")
    return dict(line.split() for line in listed.splitlines())


def networks(folder: Folder, fleet: str) -> list[str]:
    return docker("network", "ls", "--filter", _named(folder, fleet), "--format", "{{.Name}}").split()


def at_work(folder: Path, *words: str) -> list[int]:
    """Processes whose command line holds all of `words` and whose working folder lies in `folder`."""
    found: list[int] = []
    for pid in processes(*words):
        try:
            if Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder):
                found.append(pid)
        except OSError:
            continue
    return found


def _named(folder: Folder, fleet: str) -> str:
    return f"name=^orch-{fleet}-{scope_of(find(folder.path))}"


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something to become true. A failure says what was waited for."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds:.0f} s still not so: {what}")
        time.sleep(0.05)


def free_port() -> int:
    """A port of 127.0.0.1 for a container that keeps it over restarts.

    It is none that the kernel gives away by itself, and none of another process's share: between this look
    and the container's start nobody else is given it.
    """
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    for port in random.sample(range(20_000 + share, 30_000, 8), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def kill(*pids: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def processes(*words: str) -> list[int]:
    """Processes of this machine whose command line holds all of `words`."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(entry.parent.name))
    return found


def verbs() -> list[tuple[str, ...]]:
    """The words of every verb of the command line."""
    from orch.cli.verbs import VERBS, load

    found: list[tuple[str, ...]] = []
    for verb in VERBS:
        within = getattr(load(verb.name), "commands", {})
        found += [(verb.name, name) for name, each in within.items() if not each.hidden] or [(verb.name,)]
    return found


def run_beside(folder: Path, commands: Mapping[str, str], script: str) -> None:
    """Run a script in bash, which finds these commands (name -> shell text, put into `folder`) before the
    machine's own; it ends with 0 and complains of nothing."""
    for name, text in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
