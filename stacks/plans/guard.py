"""Holds an `up` to an approved plan: what was compared is compared again while the engine holds the stack.

A preview takes no lock, so the state may move between the comparison and the `up`. The program of an `up`
runs under the stack's lock: it looks at the state first, and registers nothing where that moved. The engine's
own update plan, made by the preview that was compared, is the second fence: the engine makes no step that is
not in it. It never leaves this machine and is deleted with the `up`, for it has what resources are made with.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orch.spec.errors import OrchError
from orch.spec.suggest import counted
from orch.stacks.engine.process import Program
from orch.stacks.errors import Conflict
from orch.stacks.events.notation import name_of
from orch.stacks.plans.marks import Mark, Marks, Word, read_marks, serial_of, write_marks
from orch.stacks.pulumi.operation import UNSEEN
from orch.stacks.pulumi.recovery import same_state
from orch.stacks.stack.state import StackExport, StackState, deployment

AGAIN = "make a new plan, `orch preview FILE --out plan.json`, and have it approved"

VOID = "the plan is void"
"""What is told of a plan that was begun and failed."""

ENGINE_REFUSES = ("violates plan", "not allowed by the plan", UNSEEN)
"""The engine's words for a step that its own plan does not have."""


class Guard:
    """The guard of one `up` of one stack.

    `recorded`: the state that was compared; `exact`: the `up` does not refresh, so that its program finds
    that very state. `error`: why the guard stopped the `up`; `begun`: whether the plan was marked as begun.
    """

    def __init__(
        self,
        stack: StackState,
        plan: str,
        recorded: StackExport | None,
        *,
        exact: bool,
        engine_plan: Path | None,
    ) -> None:
        self.stack, self.plan = stack, plan
        self.error: Conflict | None = None
        self.begun = False
        self._recorded, self._exact, self._engine_plan = recorded, exact, engine_plan
        self._serial = serial_of(stack)
        self._attempt = secrets.token_hex(3)
        self._marks = Marks()
        self._entered = False

    def begin(self) -> None:
        """Once, before anything changes: mark the plan as begun, for every machine. Raises Conflict when it
        was begun before."""
        if self.begun:
            return
        self._marks = read_marks(self.stack)
        refuse_used(self.stack, self.plan, self._marks)
        self.mark("begun")
        self.begun = True

    def mark(self, word: Word) -> None:
        """Record what became of the plan. Raises StackError."""
        write_marks(self.stack, self._marks.adding(Mark(self.plan, word, self._attempt)))

    def withdraw(self) -> None:
        """Take the mark back: another call holds the stack, and this one has not touched it."""
        marks = read_marks(self.stack)
        if (mark := marks.of_plan(self.plan)) is not None and mark.attempt == self._attempt:
            write_marks(self.stack, marks.without(self.plan))

    def enter(self, *, locked: bool = False) -> None:
        """Once, before anything changes. `locked`: the engine holds the stack for this call, so that another
        one that has begun the plan is not at work. Raises Conflict when the state moved, or somebody else
        applies this plan, or has applied it."""
        if self._entered:
            return
        self._entered = True
        self.begin()
        try:
            self._require_unchanged(locked=locked)
        except Conflict as error:
            self.error = error
            raise

    def guarded(self, words: list[str], code: Program) -> tuple[list[str], Program]:
        """The first `up` of the engine with both fences; later ones continue what it began."""
        if self._entered:
            return words, code
        self.begin()
        plan = ["--plan", str(self._engine_plan)] if self._engine_plan is not None else []

        async def run() -> Any:
            import pulumi

            try:
                self.enter(locked=True)
            except OrchError as error:
                raise pulumi.RunError(error.text()) from error
            result = code()
            return await result if inspect.isawaitable(result) else result

        return [*words, *plan], run

    def refusal(self, failed: OrchError) -> OrchError:
        """The guard's own error in place of the engine's, where a fence stopped the `up`."""
        if self.error is not None:
            return self.error
        if any(words in (failed.detail or "") for words in ENGINE_REFUSES):
            return Conflict(
                f"the engine would do something else than was approved for {self.stack.name}",
                detail=failed.detail,
                hint=AGAIN,
                code="ORCH393",
            )
        return failed

    def _require_unchanged(self, *, locked: bool) -> None:
        self._marks = read_marks(self.stack)
        mark = self._marks.of_plan(self.plan)
        is_own = mark is not None and mark.attempt == self._attempt
        # A call that began the plan beside this call waits for no lock: with the lock here, it ends.
        if not is_own and not (locked and (mark is None or mark.word == "begun")):
            raise Conflict(
                f"somebody else applies this plan of {self.stack.name}",
                detail="nothing was changed by this call",
                hint="wait for that call; then look with `orch preview`",
                code="ORCH394",
            )
        now, before = deployment(self.stack.project, self.stack.name) or {}, self._recorded or {}
        if self._exact:
            unchanged = same_state(before, now)
        else:
            # The engine has just recorded what its refresh found.
            local = self.stack.project.local_state is not None
            unchanged = _identities(now) <= _identities(before) and not now.get("pending_operations")
            unchanged = unchanged and not (local and serial_of(self.stack) != self._serial)
        if not unchanged:
            raise Conflict(
                f"somebody changed {self.stack.name} since it was compared with the plan",
                detail="nothing was changed by this call",
                hint=AGAIN,
                code="ORCH393",
            )
        if not is_own:
            self.mark("begun")


def refuse_used(stack: StackState, plan: str, marks: Marks) -> None:
    """Raises Conflict when a plan was begun before, whatever became of it."""
    mark = marks.of_plan(plan)
    if mark is None:
        return
    words = {
        "begun": "was begun, and has not ended: it is at work, or it was killed",
        "failed": "was begun and failed",
        "applied": "was applied already",
    }[mark.word]
    raise Conflict(
        f"this plan of {stack.name} {words}",
        detail=present(stack) if mark.word != "applied" else None,
        hint=AGAIN if mark.word != "applied" else "nothing is left to do of it",
        code="ORCH394",
    )


def present(stack: StackState) -> str:
    """Return what a stack records now, as text."""
    stack.invalidate()
    made = [each for each in stack.resources if each.get("custom") and not _is_engines(each)]
    pending = (stack.recorded or {}).get("pending_operations") or ()
    nodes = f", {counted(len(stack.nodes), 'node')} of them" if stack.nodes else ""
    words = f"recorded now: {counted(len(made), 'resource')}{nodes}" if made else "nothing is recorded"
    names = sorted(name_of(str(each["resource"]["urn"])) for each in pending)
    return f"{words}; a call was at work on {', '.join(names)}" if names else words


def _is_engines(resource: Mapping[str, Any]) -> bool:
    return str(resource["type"]).startswith("pulumi:")


def _identities(recorded: StackExport) -> set[tuple[str, str]]:
    return {(str(each["urn"]), str(each.get("id") or "")) for each in recorded.get("resources") or ()}
