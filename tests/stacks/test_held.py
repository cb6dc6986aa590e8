"""What the engine says of a stack that somebody else changes, whatever keeps its state."""

from __future__ import annotations

import pytest

from orch.stacks.pulumi.operation import is_held, locked_error

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
