"""A look at the nodes of a fleet that begins before anybody asks for it.

Connections come about while modules are loaded and the file of a task is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orch.runner.node_api.status import NodeStatus
    from orch.spec.state import FleetState, NodeState

    Statuses = tuple[NodeStatus, ...]

KEPT_S = 10.0


class EarlyLook:
    """A look at the nodes of a fleet that is under way. `statuses` waits for it; None where it failed.

    The answer is given once, soon, and only where no node tells of a claim: what others held may be free by
    now, and nobody is refused because of it. A node that seems free is claimed when a run starts there.
    """

    def __init__(self, fleet: FleetState, statuses: Callable[[], Statuses | None]) -> None:
        self._ways, self._statuses = _ways(fleet), statuses
        self._until = time.monotonic() + KEPT_S

    def answer(self, fleet: FleetState) -> Statuses | None:
        """The statuses of the nodes of `fleet`, in its order; None where the nodes are to be asked."""
        until, self._until = self._until, 0.0
        if time.monotonic() > until or _ways(fleet) != self._ways:
            return None
        statuses = self._statuses()
        return None if statuses is None or any(status.claims for status in statuses) else statuses


def begin_look(fleet: FleetState, ask: Callable[[NodeState], NodeStatus]) -> Callable[[], Statuses | None]:
    """Ask the nodes from threads that keep no process from its end; what is returned waits for the answer."""
    from orch.runner.node_api.connector import FAN_OUT

    count = len(fleet.nodes)
    found: list[NodeStatus | None] = [None] * count
    told: SimpleQueue[None] = SimpleQueue()
    waiting: SimpleQueue[int] = SimpleQueue()
    for index in range(count):
        waiting.put(index)

    def look() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except Empty:
                return
            with suppress(Exception):  # who asks again meets it
                found[index] = ask(fleet.nodes[index])
            told.put(None)

    for _ in range(min(FAN_OUT, count)):
        threading.Thread(target=look, name="orch-look", daemon=True).start()

    def wait() -> Statuses | None:
        for _ in range(count):
            told.get()
        statuses = tuple(status for status in found if status is not None)
        return statuses if len(statuses) == count else None

    return wait


def _ways(fleet: FleetState) -> list[tuple[object, ...]]:
    """How nodes are known and reached; what a run finds there does not matter."""
    return [(node.name, node.access, node.runtime) for node in fleet.nodes]
