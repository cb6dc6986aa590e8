"""Locks of dead processes are told apart from those of live ones, of other hosts and of other containers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orch.runner.processes import Process, process, this_process
from orch.stacks.errors import Conflict
from orch.stacks.project.project import Project, find, this_host
from orch.stacks.stack.lock_holders import LockMark, holders_of, starting
from orch.stacks.stack.locks import break_dead_locks, locks


def lock(
    project: Project, pid: int, host: str, *, age_s: float = 10, fraction: str = ".123456789", name: str = ""
) -> Path:
    assert project.local_state is not None
    folder = project.local_state / ".pulumi/locks/organization" / project.name / "fleet"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - age_s)) + fraction + "Z"
    file = folder / f"{name or pid}-{host}.json"
    file.write_text(json.dumps({"pid": pid, "username": "ada", "hostname": host, "timestamp": stamp}))
    return file


def mark(lock: Path, project: Project, holder: Process) -> Path:
    """What orch writes beside the lock of its engine."""
    assert project.local_state is not None
    folder = project.local_state / ".orch/holders" / project.name / "fleet"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / lock.name).write_text(json.dumps(asdict(holder)))
    return folder / lock.name


def this() -> Process:
    found = this_process()
    assert found is not None
    return found


def ended() -> Process:
    """A process of this machine that is no more."""
    child = subprocess.Popen(["sleep", "600"])
    found = process(child.pid)
    child.kill()
    child.wait()
    assert found is not None
    return found


def test_the_lock_of_a_dead_process_is_broken_and_returned(tmp_path: Path) -> None:
    project, dead = find(tmp_path), ended()
    file = lock(project, dead.pid, this_host())
    beside = mark(file, project, dead)
    (broken,) = break_dead_locks(project, "fleet")
    assert not file.exists()
    assert not beside.exists()
    assert 9 < broken.age_s < 60


def test_a_killed_child_that_nobody_collected_holds_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    there = process(child.pid)
    assert there is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    project = find(tmp_path)
    mark(lock(project, child.pid, this_host()), project, there)
    assert len(break_dead_locks(project, "fleet")) == 1
    child.wait()


def test_a_live_process_keeps_its_lock(tmp_path: Path) -> None:
    project = find(tmp_path)
    file = lock(project, os.getpid(), this_host(), fraction="")
    mark(file, project, this())
    with pytest.raises(Conflict) as caught:
        break_dead_locks(project, "fleet")
    assert caught.value.exit_code == 9
    assert f"process {os.getpid()} of ada@" in (caught.value.where or "")
    assert file.exists()


def test_a_lock_of_this_host_name_without_a_mark_is_somebodys(tmp_path: Path) -> None:
    """A `pulumi` by hand in another container has this host's name and a number that is dead here."""
    project = find(tmp_path)
    file = lock(project, ended().pid, this_host())
    with pytest.raises(Conflict):
        break_dead_locks(project, "fleet")
    assert file.exists()


@pytest.mark.parametrize("other", ["namespace", "boot", "number"])
def test_a_mark_of_another_container_or_boot_or_number_breaks_no_lock(tmp_path: Path, other: str) -> None:
    project, dead = find(tmp_path), ended()
    file = lock(project, dead.pid, this_host())
    changed = {
        "namespace": replace(dead, namespace="1"),
        "boot": replace(dead, boot="0" * 36),
        "number": replace(dead, pid=dead.pid + 1),
    }
    beside = mark(file, project, changed[other])
    with pytest.raises(Conflict):
        break_dead_locks(project, "fleet")
    assert file.exists()
    assert beside.exists()


def test_marks_whose_locks_are_gone_are_swept_and_those_of_the_living_stay(tmp_path: Path) -> None:
    project = find(tmp_path)
    old, live = (lock(project, pid, this_host()) for pid in (1, 2))
    swept, kept = mark(old, project, ended()), mark(live, project, this())
    old.unlink()
    live.unlink()
    assert break_dead_locks(project, "fleet") == ()
    assert not swept.exists()
    assert kept.exists()


def engine_of(pid: int, words: list[str], project: Project) -> LockMark:
    """A call whose engine has this number, and that nobody ends."""
    mark = LockMark(project, "fleet", words).__enter__()
    mark.engine_started(pid)
    return mark


@pytest.mark.parametrize(
    ("words", "marked"),
    [
        *((words.split(), True) for words in ("up", "destroy --yes", "refresh --yes", "import")),
        *((f"stack {words}".split(), True) for words in ("init x", "rm --yes", "import", "rename x")),
        *((f"state {words}".split(), True) for words in ("unprotect --all", "delete x", "repair --yes")),
        *((words.split(), False) for words in ("preview", "refresh --preview-only", "cancel --yes")),
        *((f"stack {words}".split(), False) for words in ("export", "output x", "tag set a b", "history")),
    ],
)
def test_a_command_that_locks_marks_the_lock_that_its_engine_took(
    tmp_path: Path, words: list[str], marked: bool
) -> None:
    project = find(tmp_path)
    with LockMark(project, "fleet", words) as mark:
        mark.engine_started(os.getpid())
        lock(project, os.getpid(), this_host(), age_s=100)  # of an engine before with this number
        file = lock(project, os.getpid(), this_host(), age_s=0, name="mine")
        heard: list[object] = []
        listener = mark.marking(heard.append)
        listener({"preludeEvent": {}})
        assert holders_of(project, "fleet", file.name) == ((this(),) if marked else ())
        assert heard == [{"preludeEvent": {}}]
        file.unlink()
    assert holders_of(project, "fleet", file.name) == ()


def test_of_two_locks_that_may_be_its_own_an_operation_marks_none(tmp_path: Path) -> None:
    project = find(tmp_path)
    with LockMark(project, "fleet", ["up"]) as mark:
        mark.engine_started(os.getpid())
        files = [lock(project, os.getpid(), this_host(), age_s=0, name=name) for name in "ab"]
        mark.marking(lambda event: None)({"preludeEvent": {}})
        assert [holders_of(project, "fleet", file.name) for file in files] == [(), ()]


def test_the_mark_of_an_engine_that_was_killed_stays_with_its_lock(tmp_path: Path) -> None:
    project = find(tmp_path)
    child = subprocess.Popen(["sleep", "600"])
    with LockMark(project, "fleet", ["up"]) as mark:
        mark.engine_started(child.pid)
        lock(project, child.pid, this_host(), age_s=0)
        mark.marking(lambda event: None)({"preludeEvent": {}})
        child.kill()
        child.wait()
    assert len(break_dead_locks(project, "fleet")) == 1


def test_the_lock_of_an_engine_that_was_killed_before_its_first_event_is_broken(tmp_path: Path) -> None:
    project = find(tmp_path)
    child = subprocess.Popen(["sleep", "600"])
    engine_of(child.pid, ["destroy"], project)  # who called it is killed too, and ends nothing
    file = lock(project, child.pid, this_host(), age_s=0)
    with pytest.raises(Conflict):
        break_dead_locks(project, "fleet")
    child.kill()
    child.wait()
    other = lock(project, child.pid, this_host(), age_s=-30, name="other")
    assert [holders_of(project, "fleet", each.name) for each in (file, other)] == [(), ()]
    other.unlink()
    assert [held.file for held in break_dead_locks(project, "fleet")] == [file]
    assert not [*tmp_path.rglob("started-*")]


@pytest.mark.parametrize("age_s", [100, -200])
def test_a_start_tells_nothing_of_a_lock_of_another_time(tmp_path: Path, age_s: float) -> None:
    project = find(tmp_path)
    child = subprocess.Popen(["sleep", "600"])
    engine_of(child.pid, ["up"], project)
    child.kill()
    child.wait()
    lock(project, child.pid, this_host(), age_s=age_s)
    with pytest.raises(Conflict):
        break_dead_locks(project, "fleet")


def test_the_note_of_a_start_goes_with_its_call_and_stays_while_the_engine_lives(tmp_path: Path) -> None:
    project = find(tmp_path)
    child = subprocess.Popen(["sleep", "600"])
    with LockMark(project, "fleet", ["up"]) as mark:
        assert starting(project) == (("fleet", this()),)
        mark.engine_started(child.pid)
        assert [each.pid for _, each in starting(project)] == [child.pid]
        child.kill()
        child.wait()
    assert not [*tmp_path.rglob("started-*")]
    child = subprocess.Popen(["sleep", "600"])
    with LockMark(project, "fleet", ["stack", "rm"]) as mark:
        mark.engine_started(child.pid)
    # Who called it has ended, as by an error: the engine takes its lock only now.
    file = lock(project, child.pid, this_host(), age_s=0)
    with pytest.raises(Conflict):
        break_dead_locks(project, "fleet")
    child.kill()
    child.wait()
    assert [held.file for held in break_dead_locks(project, "fleet")] == [file]
    assert not [*tmp_path.rglob("started-*")]


def test_an_event_from_before_the_lock_ends_no_note(tmp_path: Path) -> None:
    project = find(tmp_path)
    child = subprocess.Popen(["sleep", "600"])
    mark = engine_of(child.pid, ["destroy"], project)
    mark.marking(lambda event: None)({"diagnosticEvent": {}})
    file = lock(project, child.pid, this_host(), age_s=0)
    child.kill()
    child.wait()
    assert [held.file for held in break_dead_locks(project, "fleet")] == [file]


def test_a_lock_that_two_engines_of_one_number_may_have_taken_is_broken_when_both_are_dead(
    tmp_path: Path,
) -> None:
    project = find(tmp_path)
    child = subprocess.Popen(["sleep", "600"])
    first, second = (engine_of(child.pid, ["up"], project) for _ in "ab")
    assert first is not second
    file = lock(project, child.pid, this_host(), age_s=0)
    notes = sorted(tmp_path.rglob("started-*"))
    assert len(notes) == 2
    child.kill()
    child.wait()
    whole = json.loads(notes[0].read_text())
    notes[0].write_text(json.dumps(whole | {"namespace": "1"}))  # of another container: nobody can tell
    with pytest.raises(Conflict):
        break_dead_locks(project, "fleet")
    notes[0].write_text(json.dumps(whole))
    assert [held.file for held in break_dead_locks(project, "fleet")] == [file]


def test_a_note_whose_folder_another_call_removes_is_written_all_the_same(tmp_path: Path) -> None:
    project = find(tmp_path)
    ending = threading.Event()

    def calls() -> None:
        while not ending.is_set():
            with LockMark(project, "fleet", ["stack", "rm"]):
                pass

    child = subprocess.Popen(["sleep", "600"])
    others = [threading.Thread(target=calls) for _ in range(2)]
    for each in others:
        each.start()
    try:
        for _ in range(300):
            with LockMark(project, "fleet", ["up"]) as mark:
                mark.engine_started(child.pid)
                assert child.pid in [each.pid for _, each in starting(project)]
    finally:
        ending.set()
        for each in others:
            each.join()
        child.kill()
        child.wait()


def test_a_lock_that_cannot_be_read_is_somebodys(tmp_path: Path) -> None:
    project = find(tmp_path)
    lock(project, 1, "x").write_text("{")
    assert [held.user for held in locks(project, "fleet")] == ["unknown"]
    with pytest.raises(Conflict):
        break_dead_locks(project, "fleet")


# In a pid namespace and on a host of its own, as a container has them: one holds the lock of a fleet as an
# engine does, the other wants it.
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--ipc"]
CONTAINER += ["--user", "--map-root-user"] if os.getuid() else []
HOLD = """
import json, os, socket, sys, time
from pathlib import Path
from orch.stacks.stack.lock_holders import LockMark, locks_folder
from orch.stacks.project.project import find
socket.sethostname("ci")
project = find(sys.argv[1])
with LockMark(project, "fleet", ["up"]) as mark:
    mark.engine_started(os.getpid())
    folder = locks_folder(project, "fleet")
    folder.mkdir(parents=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%S.999999999Z", time.gmtime())
    lock = {"pid": os.getpid(), "username": "root", "hostname": "ci", "timestamp": now}
    (folder / "lock.json").write_text(json.dumps(lock))
    mark.marking(lambda event: None)({"preludeEvent": {}})
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""
CLAIM = """
import os, socket, sys
from orch.stacks.errors import StackLocked
from orch.stacks.stack.locks import break_dead_locks, locks
from orch.stacks.project.project import find
socket.sethostname("ci")
project = find(sys.argv[1])
(lock,) = locks(project, "fleet")
try:
    os.kill(lock.pid, 0)
except ProcessLookupError:
    print("no such process here:", end=" ")
try:
    print("broken" if break_dead_locks(project, "fleet") else "free")
except StackLocked as held:
    print("held by", held.where)
"""


def test_two_containers_of_one_host_name_do_not_break_each_others_locks(tmp_path: Path) -> None:
    # A shell goes before it, so that its number is one that the other container does not have.
    script = '"$0" -c "$1" "$2"; true'
    words = [*CONTAINER, "sh", "-c", script, sys.executable, HOLD, str(tmp_path)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "2\n"
    mark = tmp_path / f".orch/state/.orch/holders/{find(tmp_path).name}/fleet/lock.json"
    assert json.loads(mark.read_text())["pid"] == 2
    said = subprocess.run(
        [*CONTAINER, sys.executable, "-c", CLAIM, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("no such process here: held by process 2 of root@ci"), said
    holder.communicate("", timeout=60)
