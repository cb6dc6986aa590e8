"""Keeps in the ledger what runs use, for as long as somebody sees to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from orch.runner.ledger.history.metric_samples import EVERY_S
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.spec.errors import OrchError

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.node.runtime import JobRuntime
    from orch.runner.node_api.connector import Connector
    from orch.spec.state import NodeState

# How long a look that is under way is waited for at the end.
PATIENCE_S = 1.0


class Observer(Protocol):
    """The ledger and the way to the nodes, which looking at a run needs."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def connector(self) -> Connector: ...

    def runtime(self, node: NodeState) -> JobRuntime:
        """Return the job runtime of a node. Raises RunnerError."""
        ...


def keep_sample(runner: Observer, row: RunRow, until: threading.Event) -> None:
    """Look at the ranks of a run that runs, and keep what they use, unless somebody has just done so.

    Nothing is kept where no node answers: another process may reach them. Raises OrchError."""
    if row.status != "running" or until.is_set() or not runner.ledger.sample_is_due(row.id):
        return
    from orch.runner.metrics.history import packed
    from orch.runner.metrics.reading import look, run_targets

    plan = plan_of(row)
    targets = run_targets(plan, [runner.runtime(node) for node in plan.nodes])
    readings = packed(look(targets, runner.connector, deadline_s=0.0, until=until))
    if readings is not None and not until.is_set():
        runner.ledger.add_sample(row.id, row.attempt, len(targets), readings)


@contextmanager
def keeping_samples(runner: Observer, number: int) -> Iterator[None]:
    """Keep samples of a run meanwhile, from a thread: nobody waits for a node that does not answer, and what
    cannot be kept now is left out."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(EVERY_S):
            with suppress(OrchError):
                keep_sample(runner, runner.ledger.by_id(number), over)

    thread = threading.Thread(target=keep, name="orch-samples", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)
