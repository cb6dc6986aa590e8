"""What the nodes of a fleet said a moment ago, for runs of one process that look for free nodes one after the
other: a long queue asks each node once for all of them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from orch.runner.node_api.status import NodeStatus
from orch.spec.state import FleetState

Statuses = tuple[NodeStatus, ...]

KEPT_S = 2.0


@dataclass(frozen=True)
class _Answer:
    fleet: FleetState
    released_at: float
    asked_at: float
    statuses: Statuses


class RecentStatuses:
    """Thread-safe. Who comes while the nodes are asked waits for their answer."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._answers: dict[str, _Answer] = {}

    def of(self, fleet: FleetState, released_at: float, ask: Callable[[], Statuses]) -> Statuses:
        """The statuses of a fleet's nodes, in their order.

        `released_at`: when a run last left nodes of it, as the ledger says now; no earlier answer counts.
        """
        with self._locks[fleet.name]:
            now = time.monotonic()
            known = self._answers.get(fleet.name)
            if (
                known is None
                or known.released_at != released_at
                or now - known.asked_at > KEPT_S
                or known.fleet != fleet
            ):
                # The time before the question counts: what becomes free meanwhile is not in the answer.
                known = self._answers[fleet.name] = _Answer(fleet, released_at, now, ask())
            return known.statuses
