"""Take, extend and release leases of stacks (`stack/leases.py`), and check them under the engine's lock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from orch.components.accounts import Account
from orch.spec.errors import OrchError
from orch.stacks.engine.process import Program
from orch.stacks.pulumi.accounts import asked, record, require_planned
from orch.stacks.pulumi.operation import while_held
from orch.stacks.pulumi.progress import Listener
from orch.stacks.pulumi.recovery import when_free
from orch.stacks.stack.command import remove_tag, set_tag
from orch.stacks.stack.leases import TAG, StackLease, is_of_state, lease_of, leased_error, refuse_leased
from orch.stacks.stack.locks import break_dead_locks
from orch.stacks.stack.state import HOLD, StackState

T = TypeVar("T")


def take(stack: StackState, owner: str, seconds: int, listener: Listener) -> tuple[StackLease, bool]:
    """Take the lease of a stack, or one's own for longer; with whether it is a new one.

    Waits for a call that is at work on the stack. Raises Leased, StackLocked, StackError.
    """

    def change() -> tuple[StackLease, bool]:
        now = datetime.now(timezone.utc)
        former = lease_of(stack)
        if former is not None and former.binds(owner, now):
            raise leased_error(stack, former)
        own = former is not None and not former.is_over(now)
        second = now.replace(microsecond=0)
        since = former.since if former is not None and own else second
        lease = StackLease(owner, since, second + timedelta(seconds=seconds))
        set_tag(stack, TAG, lease.value)
        return lease, not own

    return _held(stack, change, listener)


@dataclass(frozen=True)
class Taken:
    """A lease that was taken; `is_new`: this owner had none before."""

    stack: StackState
    lease: StackLease
    is_new: bool


def take_all(stacks: Iterable[StackState], seconds: int, listener: Listener) -> tuple[Taken, ...]:
    """Take the leases of stacks for the owner of their project, all or none. Raises as `take`."""
    taken: list[Taken] = []
    try:
        for stack in stacks:
            taken.append(Taken(stack, *take(stack, stack.project.owner, seconds, listener)))
    except OrchError:
        give_back(taken, listener)
        raise
    return tuple(taken)


def give_back(taken: Iterable[Taken], listener: Listener) -> None:
    """Release those that are new. Raises as `release`."""
    for each in taken:
        if each.is_new:
            release(each.stack, each.stack.project.owner, listener)


def release(stack: StackState, owner: str, listener: Listener, *, force: bool = False) -> StackLease | None:
    """Release the lease of a stack; None where nobody has one. `force`: also another owner's.

    Raises Leased, StackLocked, StackError.
    """

    def change() -> StackLease | None:
        former = lease_of(stack)
        if former is None:
            return None
        if not force and former.binds(owner, datetime.now(timezone.utc)):
            raise leased_error(stack, former)
        remove_tag(stack, TAG)
        return former

    lease = lease_of(stack)
    if lease is None:
        return None
    if force and is_of_state(lease):
        holder = stack.sibling(HOLD)
        holder.invalidate()
        hold = lease_of(holder)
        if hold is not None and hold.binds(owner, datetime.now(timezone.utc)):
            raise leased_error(stack, hold)
        # What a killed move has left keeps everybody else from the tags, too.
        stack = StackState(replace(stack.project, owner=lease.owner), stack.name)
    return _held(stack, change, listener)


class StackFence:
    """Looks at the tags once more while the engine holds the stack, before an `up` of a call registers
    anything: another owner may have taken the lease meanwhile, or another account have made the stack."""

    def __init__(self, stack: StackState) -> None:
        self._stack = stack
        self._error: OrchError | None = None
        self._passed: frozenset[str] | None = None

    def guarded(self, code: Program, makes: Collection[str], planned: Account | None = None) -> Program:
        """Return the program with that look before it. `makes`: the backends on which it may create
        something, whose accounts are recorded with the stack; `planned`: see `require_planned`. Raises what
        asking for these raises."""
        if self._passed is not None and self._passed.issuperset(makes):
            return code
        present = asked(self._stack.project, makes)
        if planned is not None:
            for name in makes:
                require_planned(self._stack, name, planned)
            present = dict.fromkeys(makes, planned)

        async def run() -> Any:
            import pulumi

            try:
                refuse_leased(self._stack)
                record(self._stack, present)
            except OrchError as error:
                self._error = error
                raise pulumi.RunError(error.text()) from error
            self._passed = frozenset(makes)
            result = code()
            return await result if inspect.isawaitable(result) else result

        return run

    def refusal(self, failed: OrchError) -> OrchError:
        """Return the error that stopped the `up`, in place of the engine's own error."""
        return self._error or failed


def _held(stack: StackState, change: Callable[[], T], listener: Listener) -> T:
    """Do it while the engine holds the stack, after waiting for who holds it."""
    done: list[T] = []

    def once() -> None:
        break_dead_locks(stack.project, stack.name)
        done.append(while_held(stack, lambda still_held: change(), listener))

    when_free(stack, listener, once)
    return done[0]
