"""A lease of a stack: until its end, or until it is released, its owner alone changes the stack.

A lock lasts as long as a call; a lease from an apply out of a pull request to its merge, when the default
branch describes what is there again. It is a tag of the stack, so that it lies beside any state. It is taken,
extended and released while the engine holds the stack: of two at once one takes it, and no `up` is at work.
An `up` looks at it before it plans, and once more under the lock; `down` and what runs no program look at it
before they begin.

A move of the state, and a rotation of its passphrase, hold the whole state: a stack of their own beside the
others (`HOLD`) is leased to them, so that nobody changes or creates a stack meanwhile. Each command of the
engine that changes a stack looks at it (`operation.py`).
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from orch.components.accounts import Account
from orch.spec.diagnostics import Severity
from orch.spec.errors import OrchError
from orch.spec.findings import Finding
from orch.stacks.errors import Conflict
from orch.stacks.pulumi.accounts import asked, record, require_planned
from orch.stacks.pulumi.locks import break_dead_locks, subject
from orch.stacks.pulumi.operation import Listener, plain, while_held
from orch.stacks.pulumi.process import Program
from orch.stacks.pulumi.recovery import when_free
from orch.stacks.pulumi.tags import last_tags, read_tags, remove_tag, set_tag
from orch.stacks.roots import MOVED
from orch.stacks.state import HOLD, StackState

TAG = "orch:lease"
CODE = "ORCH395"
ROTATION = "the rotation of the passphrase"
"""How the owner of the leases of a rotation begins; the rest is whose it is, and where: it goes on there."""
HELD = "ORCH389"
FOR_GOOD_S = 20 * 365 * 86_400
"""How long nobody else changes what has moved away."""

AHEAD = timedelta(minutes=5)
"""How far the clocks of two owners may differ without one taking the other's lease too early."""

T = TypeVar("T")

_VALUE = re.compile(r"(\S+) (\S+) (.+)")
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


class Leased(Conflict):
    """Another owner has the lease of the stack, or of the whole state."""


@dataclass(frozen=True)
class StackLease:
    """Who alone changes a stack, since when and until when, in UTC and whole seconds."""

    owner: str
    since: datetime
    until: datetime

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> StackLease | None:
        """None where there is none, and for a tag that orch has not written."""
        match = _VALUE.fullmatch(tags.get(TAG, ""))
        try:
            return match and cls(match[3], _moment(match[1]), _moment(match[2]))
        except ValueError:
            return None

    def binds(self, owner: str, now: datetime) -> bool:
        """Whether it keeps this one from changing the stack: for another owner, whose clock may be ahead, a
        tenth longer than it lasts, and `AHEAD` at most."""
        return owner != self.owner and now < self.until + min(AHEAD, (self.until - self.since) / 10)

    def is_over(self, now: datetime) -> bool:
        return now >= self.until

    @property
    def is_for_good(self) -> bool:
        """Whether it keeps what has moved away."""
        return (self.until - self.since).total_seconds() >= FOR_GOOD_S

    @property
    def value(self) -> str:
        return f"{self.since.strftime(_MOMENT)} {self.until.strftime(_MOMENT)} {self.owner}"

    @property
    def words(self) -> str:
        return f"{self.owner}, since {self.since.strftime(_MOMENT)}, until {self.until.strftime(_MOMENT)}"

    def as_json(self) -> dict[str, str]:
        return {
            "owner": self.owner,
            "since": self.since.strftime(_MOMENT),
            "until": self.until.strftime(_MOMENT),
        }


def lease_of(stack: StackState) -> StackLease | None:
    """The lease as it is now, also one that is over. Raises StackError."""
    return StackLease.of(read_tags(stack))


def take(stack: StackState, owner: str, seconds: int, listener: Listener) -> tuple[StackLease, bool]:
    """Take the lease of a stack, or one's own for longer; with whether it is a new one.

    Waits for a call that is at work on the stack. Raises Leased, StackLocked, StackError.
    """

    def change() -> tuple[StackLease, bool]:
        now = datetime.now(timezone.utc)
        former = lease_of(stack)
        if former is not None and former.binds(owner, now):
            raise _leased(stack, former)
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
            raise _leased(stack, former)
        remove_tag(stack, TAG)
        return former

    lease = lease_of(stack)
    if lease is None:
        return None
    if force and _is_of_state(lease):
        holder = stack.sibling(HOLD)
        holder.invalidate()
        hold = lease_of(holder)
        if hold is not None and hold.binds(owner, datetime.now(timezone.utc)):
            raise _leased(stack, hold)
        # What a killed move has left keeps everybody else from the tags, too.
        stack = StackState(replace(stack.project, owner=lease.owner), stack.name)
    return _held(stack, change, listener)


def refuse_leased(stack: StackState, tags: Mapping[str, str] | None = None) -> None:
    """Raises Leased where a lease, of the stack or of the state, keeps the project's caller from changing a
    stack. `tags`: the stack's, where they were just read."""
    lease = lease_of(stack) if tags is None else StackLease.of(tags)
    if stack.project.local_state is not None:
        refuse_held(stack)
    if lease is not None and lease.binds(stack.project.owner, datetime.now(timezone.utc)):
        raise _leased(stack, lease)


def refuse_held(stack: StackState) -> None:
    """Raises Leased (ORCH389) while a move or a rotation of another owner holds the state of a stack.

    A state in files is asked now. Elsewhere the lease that such a change takes of each stack tells it, as the
    operation under way has read it, and `refuse_new` of a stack that is new.
    """
    if stack.name == HOLD:
        return
    if stack.project.local_state is not None:
        lease = lease_of(stack.sibling(HOLD))
    else:
        found = StackLease.of(last_tags(stack)) if stack.exists else None
        lease = found if found is not None and _is_of_state(found) else None
    if lease is not None and lease.binds(stack.project.owner, datetime.now(timezone.utc)):
        raise _leased(stack, lease)


def refuse_new(stack: StackState) -> None:
    """Remove a stack again that was just created. Raises Leased where the state is held.

    Whoever holds the state lists its stacks after it took the hold: it sees this stack, or is seen here.
    """
    hold = stack.sibling(HOLD)
    hold.invalidate()
    lease = lease_of(hold)
    if stack.name == HOLD or lease is None:
        return
    if lease.binds(stack.project.owner, datetime.now(timezone.utc)):
        plain(stack, ["stack", "rm", "--yes"])
        raise _leased(stack, lease)


def _is_of_state(lease: StackLease) -> bool:
    return lease.owner.startswith((ROTATION, MOVED))


def lease_finding(stack: StackState) -> tuple[Finding, ...]:
    """What a plan says of a lease: nothing where there is none, a note of one's own."""
    lease = lease_of(stack)
    now = datetime.now(timezone.utc)
    if lease is None or lease.is_over(now):
        return ()
    if not lease.binds(stack.project.owner, now):
        return (Finding(CODE, "name", f"this caller has the lease: {lease.words}", severity=Severity.NOTE),)
    error = _leased(stack, lease)
    summary = f"{error.summary}: nobody else may apply"
    return (Finding(CODE, "name", summary, lease.words, error.hint, Severity.WARNING),)


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
        """Why it stopped the `up`, in place of the engine's own error."""
        return self._error or failed


def _moment(text: str) -> datetime:
    return datetime.strptime(text, _MOMENT).replace(tzinfo=timezone.utc)


def _leased(stack: StackState, lease: StackLease) -> Leased:
    if _is_of_state(lease):
        return _state_held(stack, lease)
    return Leased(
        f"the {subject(stack.name)} is leased to {lease.owner}",
        where=lease.words,
        detail="until then or its release nobody else changes it; nothing was changed",
        hint="wait for the merge that releases it; who knows that it is not needed any more: "
        f"`orch lease release {stack.name} --force`",
        code=CODE,
    )


def _state_held(stack: StackState, lease: StackLease) -> Leased:
    """The error for a stack of a state that somebody moves, or has moved, or whose passphrase is rotated."""
    since = lease.since.strftime(_MOMENT)
    hold = lease if stack.name == HOLD else lease_of(stack.sibling(HOLD))
    moves = lease.owner.startswith(MOVED)
    url = lease.owner.removeprefix(MOVED)
    if moves and (hold is None or hold.is_for_good or hold.owner != lease.owner):
        return Leased(
            f"the state of the {subject(stack.name)} has moved to {url}",
            where=stack.project.state_url,
            detail=f"since {since}; nothing was changed",
            hint=f"get the newest `orch.yml`, or write `state: {url}` into it",
            code=CODE,
        )
    goes_on = f"`orch state move --to {shlex.quote(url)}` continues it"
    until = "it holds for an hour, and each stack until `orch lease release NAME --force`"
    if not moves:
        goes_on, until = "`orch rotate passphrase` continues it in that folder", "it holds for an hour"
    return Leased(
        f"{lease.owner} holds the state",
        where=stack.project.state_url,
        detail=f"since {since}; until it ends nobody else changes or creates a stack; nothing was changed",
        hint=f"wait until it ends; if it was interrupted, {goes_on}; without that {until}",
        code=HELD,
    )


def _held(stack: StackState, change: Callable[[], T], listener: Listener) -> T:
    """Do it while the engine holds the stack, after waiting for who holds it."""
    done: list[T] = []

    def once() -> None:
        break_dead_locks(stack.project, stack.name)
        done.append(while_held(stack, lambda still_held: change(), listener))

    when_free(stack, listener, once)
    return done[0]
