"""Rows of the ledger as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orch.runner.processes import is_dead_owner

ACTIVE = ("pending", "submitted", "provisioning", "running", "terminating")
# A reserved name and number for a run that is being submitted; not a run yet.
RESERVED = "reserved"
Desired = Literal["run", "stop", "abort"]
ARRAY_LIMIT = "array limit"
"""Why a member of an array waits whose turn comes when others of it have ended (configuration 8)."""
ARRAY_TURN = "its turn in the array has not come"
"""Why one waits that has not looked for nodes yet."""


@dataclass(frozen=True)
class ArrayKey:
    """An array: its name, and its number, which is that of its first member."""

    name: str
    id: int


@dataclass(frozen=True)
class RankRow:
    """The ledger's row of one rank."""

    rank: int
    node: str
    status: str
    exit_code: int | None
    reason: str | None
    message: str | None
    silent_since: float | None
    collected: bool
    notice: str | None = None


@dataclass(frozen=True)
class AttemptRow:
    """An attempt of a run that ended and was not its last.

    `events`: what of `retry` it ended by. `started_at` is None where no command began. Times are seconds
    since the epoch.
    """

    attempt: int
    plan: str
    events: tuple[str, ...]
    message: str | None
    started_at: float | None
    finished_at: float
    ranks: tuple[RankRow, ...]


@dataclass(frozen=True)
class TimedPlan:
    """An attempt whose commands ran, with its plan as text; `finished_at` is None while they do."""

    run_id: int
    run: str
    fleet: str
    submitted_by: str
    plan: str
    started_at: float
    finished_at: float | None


@dataclass(frozen=True)
class Waiting:
    """Why a run waits, and how long its next attempt is put off in seconds.

    `since`: when the tries began, None for its submission; `tries`: how many were in vain, this one included.
    `for_nodes`: it is in line for nodes of its fleet (waiting_line.py); `in_use`: it looked for some, and
    whether other runs have them. `looked_at`: when it began to look, None for now; what becomes free
    meanwhile it may not have seen. `leaves_line`: it is in line no more.
    """

    message: str
    delay_s: float
    since: float | None
    tries: int
    for_nodes: bool = False
    in_use: bool | None = None
    looked_at: float | None = None
    leaves_line: bool = False


@dataclass(frozen=True)
class RunRow:
    """The ledger's row of one run, with the ranks of its latest attempt. Times are seconds since the epoch.

    `attempt` counts from 0; `started_at` is of the latest one. `attempts` are those that ended before; the
    latest one is among them while the run waits for the next. `next_at`: when that may begin.
    `retry_since`: since when the run is tried again; None where it is not, or since its submission.
    `queued_at`, `looked_at`, `in_use`: as in waiting_line.py. `array_name` and what follows: of a member of
    an array, as in arrays.py.
    """

    id: int
    name: str
    fleet: str
    plan: str
    status: str
    desired: str
    phase: str
    reason: str | None
    message: str | None
    attempt: int
    master_port: int | None
    submitted_by: str
    owner: str | None
    lease_until: float | None
    fence: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    next_at: float | None
    retry_since: float | None
    retry_tries: int
    priority: int
    queued_at: float | None
    looked_at: float | None
    in_use: int
    now: float
    ranks: tuple[RankRow, ...]
    attempts: tuple[AttemptRow, ...] = ()
    array_name: str | None = None
    array_id: int | None = None
    array_index: int | None = None
    array_limit: int | None = None

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that a waiting run begins next: one that found no nodes keeps its own."""
        return self.attempt + any(each.attempt == self.attempt for each in self.attempts)

    @property
    def in_line(self) -> bool:
        """Whether it waits for nodes, and not for the delay after an attempt that failed."""
        return self.status == "pending" and self.queued_at is not None

    @property
    def array(self) -> ArrayKey | None:
        """The array that it is a member of."""
        if self.array_name is None or self.array_id is None:
            return None
        return ArrayKey(self.array_name, self.array_id)

    @property
    def waits_for_array(self) -> bool:
        """Whether it waits until other members of its array have ended."""
        return self.status == "pending" and self.array_limit is not None and self.message == ARRAY_LIMIT

    @property
    def took_s(self) -> float | None:
        """How long the commands of the latest attempt ran, or have run; None before they began."""
        if self.started_at is None:
            return None
        ended = [each.finished_at for each in self.attempts if each.attempt == self.attempt]
        return (ended[0] if ended else self.finished_at or self.now) - self.started_at

    @property
    def first_failed(self) -> RankRow | None:
        """The rank that failed first, which alone has said of what; else the first of those that failed."""
        failed = [rank for rank in self.ranks if rank.status == "failed"]
        own = [rank for rank in failed if rank.reason == "container_exited_with_error" and rank.message]
        return next(iter((*own, *failed)), None)

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def held(self) -> bool:
        """Whether a living process acts on it."""
        return lease_holds(self.owner, self.lease_until, self.now)


def lease_holds(owner: str | None, lease_until: float | None, now: float) -> bool:
    """Whether a lease is valid: it has a holder, has not expired, and the holder is not known to be dead."""
    return owner is not None and (lease_until or 0) > now and not is_dead_owner(owner)


@dataclass(frozen=True)
class Lease:
    """The right to act on one run, until somebody else takes it."""

    run_id: int
    owner: str
    fence: int
