"""Work that is done while the engine holds a stack: alone, and never after the engine has ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.clouds.cloud_engine import quiet
from kit.support import kill, until

from orch.stacks.engine import process
from orch.stacks.errors import EngineGone, Interrupted, StackError, StackLocked
from orch.stacks.project.project import Project, find
from orch.stacks.pulumi.operation import while_held
from orch.stacks.pulumi.recovery import same_state
from orch.stacks.stack.command import plain
from orch.stacks.stack.locks import Lock, break_dead_locks, locks
from orch.stacks.stack.state import StackState, deployment


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    made = find(tmp_path)
    made.prepare()
    plain(StackState(made, "fleet"), ["stack", "init"])
    return made


def held(project: Project) -> Lock:
    """The lock of the engine at work, once it is marked."""
    until(
        lambda: [each.holders for each in locks(project, "fleet")] not in ([], [()]), 60, "the lock is marked"
    )
    (lock,) = locks(project, "fleet")
    return lock


def test_nobody_else_changes_a_stack_meanwhile_and_it_stays_as_it_was(project: Project) -> None:
    before = deployment(project, "fleet")

    def work(still_held: Callable[[], None]) -> Lock:
        lock = held(project)
        stack = StackState(project, "fleet")
        exported = plain(stack, ["stack", "export"]).stdout
        for others in (
            lambda: plain(
                StackState(project, "fleet"), ["stack", "import"], stdin=json.dumps(json.loads(exported))
            ),
            lambda: while_held(StackState(project, "fleet"), lambda _: None, quiet),
            lambda: break_dead_locks(project, "fleet"),
        ):
            with pytest.raises(StackLocked):
                others()
        still_held()
        return lock

    lock = while_held(StackState(project, "fleet"), work, quiet)
    assert [each.pid for each in lock.holders] == [lock.pid]
    assert locks(project, "fleet") == ()
    after = deployment(project, "fleet")
    assert before is not None
    assert after is not None
    assert same_state(before, after)


def test_when_the_engine_is_killed_the_work_ends_and_its_lock_is_broken_later(project: Project) -> None:
    heard: list[str] = []

    def work(still_held: Callable[[], None]) -> None:
        kill(held(project).pid)
        try:
            until(lambda: bool(still_held()), 60, "the end is heard")
        except EngineGone as ended:
            heard.append(ended.summary)
            raise

    with pytest.raises(StackError) as caught:
        while_held(StackState(project, "fleet"), work, quiet)
    assert not isinstance(caught.value, Interrupted)  # nobody has pressed Ctrl-C
    until(lambda: bool(heard), 60, "the work has ended")
    assert heard == ["the engine ended while fleet was cleared up"]
    assert len(break_dead_locks(project, "fleet")) == 1


def test_a_process_that_is_to_end_ends_the_engines_of_its_threads_in_order(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_ENDING", threading.Event())
    raised: list[BaseException] = []

    def work(still_held: Callable[[], None]) -> None:
        held(project)
        process.end_calls()
        until(lambda: bool(still_held()), 60, "the end is heard")

    def hold() -> None:
        try:
            while_held(StackState(project, "fleet"), work, quiet)
        except BaseException as error:  # noqa: BLE001 - told by the test
            raised.append(error)

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join(60)
    assert [type(each) for each in raised] == [Interrupted]
    assert locks(project, "fleet") == ()
    with pytest.raises(KeyboardInterrupt):
        process.pause(60)
