"""Steps of `init` on a host as the engine brings them there, up after up: a shell runs in a folder what the
host is told, with stand-ins for the tools that take another user's place."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from kit.support import until

from orch.providers.orch.handler import OBSERVED, ProviderError, StepFailed, differences
from orch.providers.orch.ssh_host import SshHostHandler
from orch.runner.hosts.registration import registration_id
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed, Connector
from orch.runner.preparation.init_steps import steps
from orch.spec.models import Fleet
from orch.spec.state import NodeState

STACK = "lab/steps/0a1b2c"
TOOLS = {
    "timeout": 'shift 3; exec "$@"',
    "runuser": 'shift 3; exec "$@"',
    "install": 'shift 4; for file; do :; done; cp "$@"',
    "getent": "echo x:x:0:0::/nonexistent:/bin/sh",
    "docker": "exit 1",
}
OUTPUTS = ("facts", OBSERVED)


class HostInAFolder:
    """A connector to one host, whose files lie in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        for name, script in TOOLS.items():
            (root / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
            (root / "bin" / name).chmod(0o755)

    def run(self, node: NodeState, command: Command, **limits: Any) -> Completed:
        del limits
        given = command.stdin or b""
        assert isinstance(given, bytes)
        done = subprocess.run(
            ["sh", "-c", self._moved(command.text)],
            input=self._moved(given.decode()).replace("flock -w 30", "flock -w 1"),
            env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "OUT": str(self.root)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Completed(node.name, command, done.returncode, done.stdout, done.stderr, 0.0)

    def _moved(self, script: str) -> str:
        for place in ("/var/lib/orch", "/run/orch"):
            script = script.replace(place, f"{self.root}{place}")
        return script.replace("exec sudo -n", "exec")


class Host:
    """A host, and what the engine has recorded of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.handler = SshHostHandler(connector=cast("Connector", HostInAFolder(root)))
        self.state: dict[str, Any] | None = None

    def up(self, *init: Any) -> str:
        """What the engine does with it. What fails leaves the record as the refresh found it."""
        inputs = given(*init)
        if self.state is None:
            self.state = {**inputs, **self.handler.create(inputs)[1]}
            return "create"
        self.state |= self.handler.read("gpu1", self.state) or {}
        if not differences(self.handler, self.state, inputs):
            return "same"
        self.state = {**inputs, **self.handler.update("gpu1", self.state, inputs)}
        return "update"

    @property
    def folder(self) -> Path:
        return self.root / "var/lib/orch/init" / registration_id(STACK)

    @property
    def told(self) -> list[str]:
        file = self.root / "told"
        return file.read_text().split() if file.exists() else []


def given(*init: Any) -> dict[str, Any]:
    fleet = Fleet.model_validate({"type": "fleet", "name": "steps", "nodes": 1, "init": list(init)})
    records = {step.key: step.record for step in steps(fleet, {})}
    host = {"name": "gpu1", "stack": STACK, "address": "127.0.0.1", "port": 22, "user": "ops"}
    host |= {"host_key": "ssh-ed25519 AAAA", "status": "reachable"}
    return {**host, "init": records} if records else host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def says(word: str, **more: Any) -> dict[str, Any]:
    return {"run": f'echo {word} >>"$OUT/told"', **more}


FAILS = {"run": "exit 3", "name": "drivers"}


@pytest.mark.parametrize("before", [(), (says("one"),)], ids=["no steps", "a step"])
def test_a_failed_step_that_is_taken_back_keeps_the_host_out_no_longer(
    host: Host, before: tuple[Any, ...]
) -> None:
    assert host.up(*before) == "create"
    with pytest.raises(StepFailed):
        host.up(*before, FAILS)
    assert (host.folder / "failed").exists()
    # The file is as it was: what differs is what the host is.
    seen = host.handler.read("gpu1", host.state or {}) or {}
    assert seen[OBSERVED]["status"].startswith("kept out: init step drivers failed with 3: see ")
    assert host.up(*before) == "update"
    assert not (host.folder / "failed").exists()
    assert host.up(*before) == "same"
    assert host.told == ["one"] * len(before)


def test_a_failed_step_is_tried_again_by_each_up_until_it_is_mended(host: Host) -> None:
    step = {"run": 'test -e "$OUT/mended"'}
    assert host.up() == "create"
    for _ in range(2):
        with pytest.raises(StepFailed):
            host.up(step)
    (host.root / "mended").touch()
    assert [host.up(step), host.up(step)] == ["update", "same"]


def test_a_step_of_creation_that_is_appended_does_not_run_on_a_host_of_the_fleet(host: Host) -> None:
    first = says("first", when="create")
    assert host.up(first) == "create"
    assert host.up(first, says("late", when="create"), says("every")) == "update"
    assert host.told == ["first", "every"]


def test_an_up_beside_steps_that_still_run_takes_nothing_of_theirs_away(host: Host) -> None:
    hold = {"run": 'touch "$OUT/began"; until [ -e "$OUT/over" ]; do sleep 0.1; done'}
    ended: list[str | Exception] = []

    def first() -> None:
        try:
            ended.append(Host.up(host, hold, says("last")))
        except ProviderError as error:
            ended.append(error)

    running = threading.Thread(target=first)
    running.start()
    try:
        until((host.root / "began").exists, 60, "the steps run")
        with pytest.raises(ProviderError) as refused:
            host.handler.create(given(hold, says("last")))
        assert "the steps of init are run there already" in refused.value.summary
        assert refused.value.code == "ORCH391"
        assert (host.folder / "lock").exists()
        assert (host.root / "var/lib/orch/registered" / registration_id(STACK)).exists()
    finally:
        (host.root / "over").touch()
        running.join(60)
    assert (ended, host.told) == (["create"], ["last"])


def test_a_host_that_is_left_keeps_no_folder_of_steps(host: Host) -> None:
    assert host.up(says("one")) == "create"
    assert list((host.root / "run").iterdir())
    host.handler.delete("gpu1", host.state or {})
    assert list((host.root / "run").iterdir()) == []
    assert not (host.root / "var/lib/orch").exists()
