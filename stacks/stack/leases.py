"""A lease of a stack: until its end, or until it is released, its owner alone changes the stack.

A lock lasts as long as a call; a lease from an apply out of a pull request to its merge, when the default
branch describes what is there again. It is a tag of the stack, so that it lies beside any state. It is taken,
extended and released while the engine holds the stack: of two at once one takes it, and no `up` is at work.
An `up` looks at it before it plans, and once more under the lock; `down` and what runs no program look at it
before they begin.

A move of the state, and a rotation of its passphrase, hold the whole state: a stack of their own beside the
others (`HOLD`) is leased to them, so that nobody changes or creates a stack meanwhile. Each command of the
engine that changes a stack looks at it (`command.py`, `pulumi/operation.py`). `pulumi/leasing.py` takes and
releases leases.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.stacks.errors import Conflict
from orch.stacks.project.roots import MOVED
from orch.stacks.stack.locks import subject
from orch.stacks.stack.state import HOLD, StackState
from orch.stacks.stack.tags import last_tags, read_tags
from orch.stacks.stack.unguarded import run_command

TAG = "orch:lease"
CODE = "ORCH395"
ROTATION = "the rotation of the passphrase"
"""How the owner of the leases of a rotation begins; the rest is whose it is, and where: it goes on there."""
HELD = "ORCH389"
FOR_GOOD_S = 20 * 365 * 86_400
"""How long nobody else changes what has moved away."""

AHEAD = timedelta(minutes=5)
"""How far the clocks of two owners may differ without one taking the other's lease too early."""

_VALUE = re.compile(r"(\S+) (\S+) (.+)")
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


class Leased(Conflict):
    """Another owner has the lease of the stack, or of the whole state."""


@dataclass(frozen=True)
class StackLease:
    """Lease of a stack, which its owner alone changes; start and end in UTC and whole seconds."""

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
        """Return True if it keeps `owner` from changing the stack. Another owner's clock may be ahead: for
        them it lasts a tenth longer, at most `AHEAD`."""
        return owner != self.owner and now < self.until + min(AHEAD, (self.until - self.since) / 10)

    def is_over(self, now: datetime) -> bool:
        return now >= self.until

    @property
    def is_for_good(self) -> bool:
        """Return True if it holds a state that has moved away."""
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


def refuse_leased(stack: StackState, tags: Mapping[str, str] | None = None) -> None:
    """Raises Leased where a lease, of the stack or of the state, keeps the project's caller from changing a
    stack. `tags`: the stack's, where they were just read."""
    lease = lease_of(stack) if tags is None else StackLease.of(tags)
    if stack.project.local_state is not None:
        refuse_held(stack)
    if lease is not None and lease.binds(stack.project.owner, datetime.now(timezone.utc)):
        raise leased_error(stack, lease)


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
        lease = found if found is not None and is_of_state(found) else None
    if lease is not None and lease.binds(stack.project.owner, datetime.now(timezone.utc)):
        raise leased_error(stack, lease)


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
        run_command(stack, ["stack", "rm", "--yes"])
        raise leased_error(stack, lease)


def is_of_state(lease: StackLease) -> bool:
    return lease.owner.startswith((ROTATION, MOVED))


def lease_finding(stack: StackState) -> tuple[Finding, ...]:
    """Return a plan's finding about a lease: nothing without one, a note for one's own."""
    lease = lease_of(stack)
    now = datetime.now(timezone.utc)
    if lease is None or lease.is_over(now):
        return ()
    if not lease.binds(stack.project.owner, now):
        return (Finding(CODE, "name", f"this caller has the lease: {lease.words}", severity=Severity.NOTE),)
    error = leased_error(stack, lease)
    summary = f"{error.summary}: nobody else may apply"
    return (Finding(CODE, "name", summary, lease.words, error.hint, Severity.WARNING),)


def _moment(text: str) -> datetime:
    return datetime.strptime(text, _MOMENT).replace(tzinfo=timezone.utc)


def leased_error(stack: StackState, lease: StackLease) -> Leased:
    """Return the error for a stack that is leased to another owner, or whose state is held."""
    if is_of_state(lease):
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
