"""What the engine says of a stack that somebody else changes, whatever keeps its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.stacks.engine.install import Engine
from orch.stacks.engine.process import ProcessResult
from orch.stacks.errors import StackError
from orch.stacks.project.project import find
from orch.stacks.stack import command, unguarded
from orch.stacks.stack.state import StackState
from orch.stacks.stack.unguarded import is_held, locked_error

BUCKET = """error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end \
or delete the lock file with `pulumi cancel`.
  s3://orch-state/.pulumi/locks/organization/tests/p5/1d.json: created by ada@laptop (pid 7) at 2026-11-22"""
CLOUD = """error: [409] Conflict: Another update is currently in progress.
To learn more about possible reasons and resolution, visit https://www.pulumi.com/docs/support/"""


@pytest.mark.parametrize(("said", "held"), [(BUCKET, True), (CLOUD, True), ("error: update failed", False)])
def test_somebody_at_work_is_told_from_a_failure(said: str, held: bool) -> None:
    assert is_held(said) is held


def test_who_changes_a_stack_is_told_without_the_lock_s_address() -> None:
    error = locked_error("p5", BUCKET)
    assert (error.code, error.where) == ("ORCH350", "created by ada@laptop (pid 7) at 2026-11-22")


def test_a_lock_of_a_bucket_that_goes_while_it_is_read_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The engine lists locks, then reads each: of two that begin at once, one takes its own away between."""
    gone = 'error: could not create stack: blob (key ".pulumi/locks/o/p/s/1.json") (code=NotFound): NoSuchKey'
    answers = [ProcessResult(255, "", gone), ProcessResult(255, "", gone), ProcessResult(0, "", "")]
    monkeypatch.setattr(unguarded, "call", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(unguarded.engines, "require", lambda: Engine(tmp_path / "pulumi", "3", "PATH"))
    (tmp_path / "orch.yml").write_text("project: tests\n")
    stack = StackState(find(tmp_path), "lab")
    command.plain(stack, ["stack", "init"])
    assert answers == []
    answers[:] = [ProcessResult(255, "", gone)] * (unguarded.TRIES + 1)
    with pytest.raises(StackError, match=r"refused `stack init"):
        command.plain(stack, ["stack", "init"])
    assert len(answers) == 1
