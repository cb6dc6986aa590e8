"""Rows of the ledger as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orch.runner.processes import is_dead_owner

ACTIVE = ("submitted", "provisioning", "running", "terminating")
# A reserved name and number for a run that is being submitted; not a run yet.
RESERVED = "reserved"
Desired = Literal["run", "stop", "abort"]


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


@dataclass(frozen=True)
class RunRow:
    """The ledger's row of one run, with its ranks. Times are seconds since the epoch."""

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
    now: float
    ranks: tuple[RankRow, ...]

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
