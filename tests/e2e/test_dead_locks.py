"""Locks of engines that were killed: the next command breaks them, whichever command took them."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.support import Folder, at_work, containers, fleet_yaml, kill, networks, until

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(900)]

FLEET = "dying"
UP, DOWN = ("up", "fleet.yml", "--yes"), ("down", FLEET, "--yes")


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    folder = Folder(tmp_path)
    folder.write("fleet.yml", fleet_yaml(FLEET, 1))
    yield folder
    said = folder.orch(*DOWN)
    assert said.code == 0 or "ORCH353" in said.err, said.err
    assert containers(folder, FLEET) == {}
    assert networks(folder, FLEET) == []


def engines(folder: Folder) -> list[int]:
    return at_work(folder.path, "bin/pulumi", "--non-interactive")


def kill_some(folder: Folder, process: subprocess.Popen[str], victims: str) -> None:
    """Kill the engine, orch, or both, and wait until no engine is left."""
    found = engines(folder) if victims != "orch" else []
    kill(*(found if victims == "engine" else [process.pid, *found]))
    process.communicate(timeout=120)
    until(lambda: engines(folder) == [], 120, "the engine has ended")


def goes_on(folder: Folder, *commands: tuple[str, ...]) -> None:
    """The next commands need no `unlock`. A `down` finds no fleet when the killed call had removed it."""
    for words in commands:
        said = folder.orch(*words)
        assert said.code == 0 or (words == DOWN and "ORCH353" in said.err), (words, said.err)


class AtLock(threading.Thread):
    """Kills the engine that takes a lock, and whoever called it, as soon as the lock is there."""

    def __init__(self, folder: Folder, number: int) -> None:
        super().__init__(daemon=True)
        self._locks = folder.path / ".orch/state/.pulumi/locks/organization/tests" / FLEET
        self._number, self._seen = number, set[str]()
        self.also: int | None = None
        self.ending = threading.Event()
        self.killed = False

    def run(self) -> None:
        while not self.ending.is_set() and not self.killed:
            with contextlib.suppress(FileNotFoundError):
                for file in os.listdir(self._locks):
                    if file not in self._seen and file.endswith(".json"):
                        self._look(self._locks / file)

    def _look(self, lock: Path) -> None:
        text = lock.read_text()
        if not text.endswith("}"):
            return
        self._seen.add(lock.name)
        if len(self._seen) == self._number:
            pid = int(text.partition('"pid":')[2].partition(",")[0])
            kill(pid, *([self.also] if self.also else []))
            self.killed = True

    def left_a_lock(self) -> bool:
        return self.killed and any(self._locks.glob("*.json"))


@pytest.mark.parametrize("with_orch", [False, True], ids=["engine", "both"])
@pytest.mark.parametrize(("words", "lock"), [(DOWN, 1), (DOWN, 2), (UP, 1), (UP, 2)])
def test_the_lock_of_each_command_of_the_engine_is_broken_when_it_was_killed(
    dying: Folder, words: tuple[str, ...], lock: int, with_orch: bool
) -> None:
    """`up` takes the locks of `stack init` and `up`, `down` those of `destroy` and `stack rm`."""
    for _ in range(30):
        if words == DOWN:
            assert dying.orch(*UP).code == 0
        killer = AtLock(dying, lock)
        process = dying.start(*words)
        killer.also = process.pid if with_orch else None
        killer.start()
        process.communicate(timeout=120)
        until(lambda: engines(dying) == [], 120, "the engine has ended")
        killer.ending.set()
        killer.join()
        left = killer.left_a_lock()
        goes_on(dying, UP, DOWN)
        if left:
            return
    pytest.fail("the engine was faster each time")


def moments(count: int) -> list[object]:
    """Moments of a call: three in each run of the suite, the rest in `make soak`."""
    chance = [round(random.uniform(0.2, 7.0), 2) for _ in range(count)]
    return [
        pytest.param(at, number, marks=() if number < 3 else pytest.mark.soak, id=str(number))
        for number, at in enumerate(chance)
    ]


@pytest.mark.parametrize(("after_s", "number"), moments(100))
@pytest.mark.parametrize("verb", ["up", "down"])
def test_after_a_kill_at_any_moment_the_next_command_needs_no_unlock(
    dying: Folder, verb: str, after_s: float, number: int
) -> None:
    if verb == "down":
        assert dying.orch(*UP).code == 0
    process = dying.start(*(UP if verb == "up" else DOWN))
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    kill_some(dying, process, ("engine", "orch", "both")[number % 3])
    goes_on(dying, (UP, DOWN)[number % 2])
