"""Steps of `init` on a node that is there already: a shell runs what the node is sent, with stand-ins for the
tools that take another user's place."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import until

from orch.runner.node.first_boot import STATUS_SCRIPT
from orch.runner.node.init_steps import AT_IT, FAILED, preparation, prepare, recorded, steps, trouble
from orch.runner.node.status import read_status
from orch.spec.models import Fleet

STACK = "0123456789ab"
SECRET = "hR3vK"
TOOLS = {
    "timeout": 'echo "timeout $*" >>"$SEEN"; shift; exec "$@"',
    "runuser": 'echo "runuser $*" >>"$SEEN"; shift 3; exec "$@"',
    "install": 'shift 4; for file; do :; done; cp "$@"',
}


@dataclass(frozen=True)
class Node:
    """A node in a folder."""

    root: Path

    @classmethod
    def made(cls, root: Path) -> Node:
        (root / "bin").mkdir()
        for name, script in TOOLS.items():
            tool = root / "bin" / name
            tool.write_text(f"#!/bin/bash\n{script}\n")
            tool.chmod(0o755)
        return cls(root)

    @property
    def folder(self) -> Path:
        return self.root / "var/lib/orch/init" / STACK

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.root}/bin:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "OUT": str(self.root), "SEEN": str(self.root / "seen")}

    def moved(self, script: str) -> str:
        for place in ("/var/lib/orch", "/run/orch"):
            script = script.replace(place, f"{self.root}{place}")
        return script

    def run(self, *init: Any, wait_s: int = 30) -> subprocess.CompletedProcess[str]:
        script = self.moved(preparation(STACK, of(*init))).replace("flock -w 30", f"flock -w {wait_s}")
        handle, file = tempfile.mkstemp(dir=self.root)
        with os.fdopen(handle, "w") as sent:
            sent.write(script)
        return subprocess.run(
            ["bash", file],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def says(self) -> str | None:
        """Why it is kept out, as its status tells it."""
        done = subprocess.run(
            ["sh", "-c", self.moved(STATUS_SCRIPT)], capture_output=True, text=True, check=True
        )
        return read_status(done.stdout).unfit


def of(*init: Any) -> Sequence[Any]:
    fleet = Fleet.model_validate({"type": "fleet", "name": "lab", "nodes": 1, "init": list(init)})
    # As they come back from where they are recorded.
    return recorded({step.key: step.record for step in steps(fleet, {})})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.made(tmp_path)


def told(node: Node) -> list[str]:
    file = node.root / "told"
    return file.read_text().split() if file.exists() else []


def says(word: str, **more: Any) -> Mapping[str, Any]:
    return {"run": f'echo {word} >>"$OUT/told"', **more}


def test_steps_run_once_in_their_order_and_again_only_when_they_change(node: Node) -> None:
    first, second = says("one"), says('"$WHAT"', env={"WHAT": "two"})
    assert node.run(first, second).returncode == 0
    assert node.run(first, second).returncode == 0
    assert told(node) == ["one", "two"]
    assert node.run(first, {**second, "env": {"WHAT": "three"}}).returncode == 0
    assert node.run(says("four", when="create"), second).returncode == 0
    assert told(node) == ["one", "two", "three", "four"]
    # A node that has run a step of its creation does not run another in its place.
    assert node.run(says("five", when="create"), second).returncode == 0
    assert told(node) == ["one", "two", "three", "four"]


def test_a_failing_step_is_told_with_its_last_words_and_those_behind_it_do_not_run(node: Node) -> None:
    words = "; ".join(f"echo word {each}" for each in range(40))
    done = node.run(
        says("one"), {"name": "drivers", "run": f"{words}; echo no such driver >&2; exit 3"}, says("z")
    )
    assert (done.returncode, told(node)) == (FAILED, ["one"])
    why, last = trouble(done.returncode, done.stdout, done.stderr)
    assert why == "init step drivers failed with 3"
    assert last.splitlines()[-2:] == ["word 39", "no such driver"]
    assert len(last.splitlines()) == 15
    assert node.says() is not None
    # What is amiss is mended: the first step has run.
    assert node.run(says("one"), {"name": "drivers", "run": "true"}, says("z")).returncode == 0
    assert (told(node), node.says()) == (["one", "z"], None)


def test_a_step_that_fails_again_is_told_with_what_it_said_this_time(node: Node) -> None:
    assert node.run({"run": "echo first; exit 1"}).returncode == FAILED
    done = node.run({"run": "echo second; exit 1"})
    assert trouble(done.returncode, done.stdout) == ("init step step 0 failed with 1", "second")


def test_a_node_whose_steps_are_taken_away_is_no_longer_kept_out(node: Node) -> None:
    assert node.run({"run": "exit 1"}).returncode == FAILED
    assert node.says() == "init step step 0 failed with 1: see " + str(node.folder / "00.log")
    assert node.run().returncode == 0
    assert node.says() is None


def test_secrets_are_in_no_command_line_and_stay_no_longer_than_the_steps_run(node: Node) -> None:
    step = {
        "run": f'echo {SECRET} >/dev/null; test "$TOKEN" = "it\'s {SECRET}"',
        "env": {"TOKEN": f"it's {SECRET}"},
    }
    for init in ([step], [step, {"run": "exit 1"}], [{"run": f"kill -TERM $PPID; : {SECRET}; sleep 1"}]):
        node.run(*init)
        left = [file for file in node.root.rglob("*") if file.is_file() and SECRET in file.read_text()]
        assert left == [], left
    assert SECRET not in prepare(STACK, of(step)).text


def test_what_a_step_leaves_running_keeps_no_other_up_waiting(node: Node) -> None:
    try:
        assert node.run({"run": 'sleep 300 >/dev/null 2>&1 & echo $! >"$OUT/pid"'}).returncode == 0
        assert node.run(says("next"), wait_s=1).returncode == 0
    finally:
        subprocess.run(["kill", (node.root / "pid").read_text().strip()], check=True)


def test_a_second_up_waits_for_the_first_and_tells_when_that_takes_long(node: Node) -> None:
    hold = {"run": 'until [ -e "$OUT/over" ]; do sleep 0.1; done'}
    running = threading.Thread(target=lambda: node.run(hold))
    running.start()
    try:
        until((node.folder / "00.log").exists, 60, "it has begun")
        done = node.run(says("second"), wait_s=1)
        assert (done.returncode, told(node)) == (AT_IT, [])
        assert trouble(done.returncode, done.stdout)[0] == "the steps of init are run there already"
    finally:
        (node.root / "over").touch()
        running.join(60)


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_steps_that_are_ended_say_so(node: Node, signal: str) -> None:
    done = node.run({"run": f"kill -{signal} $PPID; sleep 1"})
    assert done.returncode != 0
    assert node.says()
