"""Commands of the engine on a stack, without a look at who holds its state: `command.py` looks first."""

from __future__ import annotations

import re
from collections.abc import Callable

from orch.stacks.engine import install as engines
from orch.stacks.engine.process import ProcessResult, call
from orch.stacks.errors import StackError
from orch.stacks.project.passphrase import is_lacking, not_ours
from orch.stacks.stack.lock_holders import LockMark, takes_lock
from orch.stacks.stack.locks import stack_locked, subject
from orch.stacks.stack.state import StackState, environment_of, work_folder

# The engine's words for a stack that somebody else changes, with a state in files and in Pulumi Cloud.
LOCKED = ("currently locked by", "Another update is currently in progress")

TRIES = 5
_LOCK_GONE = re.compile(r"\.pulumi/locks/[^\s\"]+\"\) \(code=NotFound\)")


def run_command(
    stack: StackState,
    words: list[str],
    stdin: str | None = None,
    *,
    before: Callable[[], None] = lambda: None,
) -> ProcessResult:
    """Run a command of the engine that is no operation on resources.

    Calls `before` ahead of each try, under the mark of the call. Raises what that raises, StackLocked,
    StackError.
    """
    executable, project, name = engines.require(), stack.project, stack.name
    all_words = [*words, *(["--stack", name] if words[:2] != ["stack", "init"] else [name])]

    def once() -> ProcessResult:
        with LockMark(project, name, words) as mark:
            before()
            return call(
                executable,
                all_words,
                folder=work_folder(project, name),
                environment=environment_of(stack, executable),
                mark=mark,
                stdin=stdin,
            )

    try:
        result = once()
        for _ in range(TRIES - 1):
            # It lists the locks of a bucket, then reads them: one was taken away between, and nothing done.
            if not (result.code and _LOCK_GONE.search(result.stderr)):
                break
            result = once()
    finally:
        if takes_lock(words):
            stack.invalidate()
    if result.code and is_held(result.stderr):
        raise locked_error(name, result.stderr)
    if result.code and is_lacking(result.stderr):
        raise not_ours(project, f"`{' '.join(words[:2])}` of the {subject(name)} needs its passphrase")
    if result.code and "already exists" not in result.stderr:
        raise refused(words, name, result)
    return result


def refused(words: list[str], stack: str, result: ProcessResult) -> StackError:
    """Return the error for a command that the engine refused."""
    return StackError(
        f"the engine refused `{' '.join(words)}`",
        where=stack,
        detail=result.stderr.strip()[-600:],
        code="ORCH346",
    )


def is_held(output: str) -> bool:
    """Return True if the engine refused because somebody else changes the stack."""
    return any(words in output for words in LOCKED)


def locked_error(stack: str, output: str) -> StackError:
    lines = [line.strip() for line in output.splitlines()]
    # The engine names each holder in a line of its own, after the number of them.
    holders = (line for words in ("created by", *LOCKED) for line in lines if words in line)
    holder = next(holders, "")
    # Before who holds it stands the lock's own URL, which nobody needs.
    return stack_locked(stack, holder[holder.find("created by") :] if "created by" in holder else holder)
