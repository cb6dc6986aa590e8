"""Whose turn it is among the members of an array: pure.

A member that looks for nodes and finds them in use waits in the fleet's line, for all that come after it:
they need the same. So of an array with many members one stands in line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orch.runner.ledger.arrays import Member


@dataclass(frozen=True)
class Turns:
    """`now`: members that may look for nodes, in their order. `blocked`: whether the array stands in line for
    nodes that others have, so that only those in line may."""

    now: tuple[Member, ...]
    blocked: bool


def turns(members: Sequence[Member]) -> Turns:
    """Whose turn it is. `members`: all of an array, in the order of their indexes."""
    limit = next((each.limit for each in members), None)
    free = len(members) if limit is None else limit - sum(each.has_nodes for each in members)
    waiting = [each for each in members if each.status == "pending" and each.desired == "run"]
    in_line = [each for each in waiting if each.queued_at is not None]
    blocked = any(each.in_use for each in in_line)
    fresh = [each for each in waiting if each.queued_at is None and each.now >= (each.next_at or 0.0)]
    able = in_line if blocked else sorted((*in_line, *fresh), key=lambda each: each.index)
    return Turns(tuple(able[: max(0, free)]), blocked)


def to_be_seen_to(members: Sequence[Member]) -> tuple[Member, ...]:
    """Those that have begun, or are to end."""
    return tuple(
        each for each in members if each.active and (each.status != "pending" or each.desired != "run")
    )
