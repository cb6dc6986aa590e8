"""Steps of `init` on a node that is there already: a shell runs what the node is sent, with stand-ins for the
tools that take another user's place."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.support import until

from orch.runner.node.status import read_status
from orch.runner.node_api.first_boot import STATUS_SCRIPT, unfit_error
from orch.runner.preparation.init_steps import AT_IT, FAILED, preparation, prepare, recorded, steps, trouble
from orch.spec.models import Fleet

STACK = "0123456789ab"
SECRET = "hR3vK"
TOOLS = {
    "timeout": 'echo "timeout $*" >>"$SEEN"; shift 3; exec "$@"',
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

    def run(self, *init: Any, wait_s: int = 30, new: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", self.sent(*init, wait_s=wait_s, new=new)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def sent(self, *init: Any, wait_s: int = 30, new: bool = True) -> str:
        """The file that it is sent."""
        script = self.moved(preparation(STACK, of(*init), new=new))
        handle, file = tempfile.mkstemp(dir=self.root)
        with os.fdopen(handle, "w") as sent:
            sent.write(script.replace("flock -w 30", f"flock -w {wait_s}"))
        return file

    def order(self, *init: Any) -> subprocess.Popen[str]:
        """The whole command that a node is given, under way."""
        command = prepare(STACK, of(*init), new=True)
        given = command.stdin
        assert isinstance(given, bytes)
        with tempfile.TemporaryFile("w+") as file:
            file.write(self.moved(given.decode()))
            file.seek(0)
            return subprocess.Popen(
                ["sh", "-c", self.moved(command.text).replace("exec sudo -n", "exec")],
                env=self.environment,
                stdin=file,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
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
    assert told(node) == ["one", "two", "three"]


def test_a_step_that_is_changed_back_runs_again(node: Node) -> None:
    for word in ("one", "two", "one", "one"):
        assert node.run(says(word), new=False).returncode == 0
    assert told(node) == ["one", "two", "one"]


def test_a_step_changed_back_after_the_other_failed_runs_again(node: Node) -> None:
    assert node.run(says("one")).returncode == 0
    assert node.run({"run": "exit 1"}, new=False).returncode == FAILED
    assert node.run(says("one"), new=False).returncode == 0
    assert (told(node), node.says()) == (["one", "one"], None)


def test_steps_that_do_not_change_do_not_run_again_when_others_come_and_go_around_them(node: Node) -> None:
    one, two = says("one"), says("two")
    for init in ([one, two], [says("new"), one, two], [two], [says("last"), two]):
        assert node.run(*init, new=False).returncode == 0
    assert told(node) == ["one", "two", "new", "last"]


def test_equal_steps_run_each(node: Node) -> None:
    again = says("again")
    assert node.run(again, again).returncode == 0
    assert node.run(again, again, again, new=False).returncode == 0
    assert told(node) == ["again"] * 3


def test_a_step_of_creation_runs_on_a_new_node_alone_wherever_it_stands(node: Node) -> None:
    first, late = says("first", when="create"), says("late", when="create")
    assert node.run(first, says("every")).returncode == 0
    assert node.run(first, late, says("every"), new=False).returncode == 0
    assert node.run(says("between"), first, late, says("every"), new=False).returncode == 0
    assert told(node) == ["first", "every", "between"]
    # It is there for good: what was a step of creation is now one for all.
    assert node.run(first, says("late"), new=False).returncode == 0
    assert told(node) == ["first", "every", "between", "late"]


def test_a_creation_that_was_cut_off_goes_on_where_it_was(node: Node) -> None:
    mended = {"run": 'test -e "$OUT/mended"', "when": "create"}
    init = (says("first", when="create"), mended, says("last", when="create"))
    assert node.run(*init).returncode == FAILED
    (node.root / "mended").touch()
    assert node.run(*init).returncode == 0
    assert told(node) == ["first", "last"]


def test_what_a_step_makes_is_for_everybody_to_read(node: Node) -> None:
    assert node.run({"run": 'mkdir "$OUT/data"; echo 1 >"$OUT/data/setting"'}).returncode == 0
    modes = [(node.root / path).stat().st_mode & 0o777 for path in ("data", "data/setting")]
    assert [oct(mode) for mode in modes] == ["0o755", "0o644"]


def test_a_step_that_does_not_end_when_its_time_is_over_is_killed(node: Node) -> None:
    assert node.run({"run": "true", "timeout": "5m"}).returncode == 0
    assert (node.root / "seen").read_text().startswith("timeout -k 10 300 runuser ")


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
    assert SECRET not in prepare(STACK, of(step), new=True).text


def test_what_one_that_was_killed_was_sent_goes_with_the_next_and_not_what_another_waits_with(
    node: Node,
) -> None:
    hold = {"run": f'touch "$OUT/began"; until [ -e "$OUT/over" ]; do sleep 0.1; done; : {SECRET}'}
    killed, waiting = node.order(hold), None
    try:
        until((node.root / "began").exists, 60, "it has begun")
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate(timeout=60)
        (left,) = node.folder.glob("run.*")
        (node.root / "began").unlink()
        running = node.order(hold)
        until((node.root / "began").exists, 60, "the next has begun")
        assert not left.exists()
        waiting = node.order(says("second"))
        until(lambda: len(list(node.folder.glob("run.*"))) == 2, 60, "another waits")
        (node.root / "over").touch()
        for each in (running, waiting):
            each.communicate(timeout=60)
            assert each.returncode == 0
        assert told(node) == ["second"]
        assert list(node.folder.glob("run.*")) == []
    finally:
        (node.root / "over").touch()


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


@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_steps_that_are_ended_say_so(node: Node, name: str) -> None:
    done = node.run({"run": f"kill -{name} $PPID; sleep 1"})
    assert done.returncode != 0
    assert node.says()


def test_a_node_whose_steps_were_killed_with_all_that_ran_them_is_kept_out(node: Node) -> None:
    assert node.run(says("one")).returncode == 0
    running = node.order({"run": 'touch "$OUT/began"; sleep 300'})
    until((node.root / "began").exists, 60, "it has begun")
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    assert node.says() == "the steps of init have not come to their end"
    assert node.run(says("one")).returncode == 0
    assert node.says() is None


def test_a_step_that_fails_when_nobody_listens_any_more_keeps_the_node_out(node: Node) -> None:
    """The connection is gone: what would tell it ends by the signal of a closed pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    step = {"run": "echo its last words; exit 3"}
    done = subprocess.run(["bash", node.sent(step)], env=node.environment, stdout=writer, check=False)
    os.close(writer)
    assert done.returncode != 0
    assert node.says() == f"init step step 0 failed with 3: see {node.folder}/00.log"


def test_a_host_without_flock_runs_steps(node: Node) -> None:
    (node.root / "bin/flock").write_text("#!/bin/sh\nexit 127\n")
    (node.root / "bin/flock").chmod(0o755)
    assert node.run(says("one")).returncode == 0
    tools = node.root / "few"
    tools.mkdir()
    for tool in ["bash", "sh", "cat", "cp", "rm", "mkdir", "chmod", "touch", "grep", "tail", "sed"]:
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    few = {**node.environment, "PATH": f"{node.root}/bin:{tools}"}
    (node.root / "bin/flock").unlink()
    done = subprocess.run(
        ["bash", node.sent(says("one"), says("two"))], env=few, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, told(node)) == (0, "", ["one", "two"])


def test_a_shared_host_says_whose_step_keeps_it_out(node: Node) -> None:
    assert node.run({"run": "exit 1"}).returncode == FAILED
    (node.root / "var/lib/orch/registered").mkdir()
    (node.root / "var/lib/orch/registered" / STACK).write_text("lab/trainers/0a1b2c\n")
    (node.root / "var/lib/orch/registered" / ("f" * 12)).write_text("other/fleet/3d4e5f\n")
    why = node.says() or ""
    assert why.startswith("init step step 0 failed with 1: see ")
    assert why.endswith(" (fleet trainers of project lab)")
    assert "`orch up` of the fleet whose steps failed" in (unfit_error("gpu1", why).hint or "")


def test_more_than_a_hundred_steps_keep_their_order() -> None:
    """The engine keeps a mapping's keys in the order of letters."""
    fleet = Fleet.model_validate(
        {"type": "fleet", "name": "lab", "nodes": "1", "init": [f"echo {index}" for index in range(102)]}
    )
    records = dict(sorted((step.key, step.record) for step in steps(fleet, {})))
    assert [step.content for step in recorded(records)] == [f"echo {index}\n" for index in range(102)]
