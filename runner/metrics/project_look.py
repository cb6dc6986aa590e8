"""One look at all there is of a project, which those who ask at the same time share.

`ProjectWatch.look` never takes longer than its deadline: a node that has not answered by then is told as one
that did not, and is not asked again before its command has ended.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field

from orch.runner.errors import RunnerError
from orch.runner.health.findings import HealthReport
from orch.runner.ledger.history.node_health import HealthPeriod
from orch.runner.ledger.records import RunRow
from orch.runner.metrics import node_look
from orch.runner.metrics.node_look import NodeLook
from orch.runner.node.runtime import JobRuntime
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.node_api.connector import FAN_OUT, Connector
from orch.spec.errors import OrchError
from orch.spec.state import FleetState, NodeState

DEADLINE_S = 8.0
"""Less than the ten seconds after which Prometheus gives a scrape up."""
SHARED_S = 3.0
CONNECT_S = 4.0
COMMAND_S = 7.0


@dataclass(frozen=True)
class HealthRow:
    """The verdict on a node's health: `status` is healthy, warning or failure; `since` in seconds since the
    epoch; `findings`: how many there are, by their severity."""

    fleet: str
    node: str
    status: str
    since: float
    reason: str = ""
    findings: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, period: HealthPeriod) -> HealthRow:
        """As the ledger has it; without findings where its report is of a newer version."""
        counts = Counter[str]()
        with suppress(RunnerError):
            counts.update(one.severity for one in HealthReport.from_json(period.report).findings)
        found = tuple(sorted(counts.items()))
        return cls(period.fleet, period.node, period.status, period.began_at, period.reason, found)


@dataclass(frozen=True)
class FleetCost:
    """US dollars: what a fleet has cost since it is recorded, what it costs an hour, and what its file lets
    it cost in all. `unpriced`: how many of its nodes have no known price."""

    fleet: str
    spent: float | None = None
    hourly: float | None = None
    budget: float | None = None
    unpriced: int = 0


@dataclass(frozen=True)
class ProjectFacts:
    """What is known of a project without asking its nodes. `now`: seconds since the epoch, by the ledger.

    `ended`: how many runs have ended, by fleet and status. `sources`: whether each of `state`, `ledger` and
    `files` could be read. `month_spent`, `month_forecast`: US dollars of the calendar month.
    """

    fleets: tuple[FleetState, ...] = ()
    runs: tuple[RunRow, ...] = ()
    ended: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    costs: tuple[FleetCost, ...] = ()
    health: tuple[HealthRow, ...] = ()
    month_spent: float | None = None
    month_forecast: float | None = None
    sources: Mapping[str, bool] = field(default_factory=dict[str, bool])


@dataclass(frozen=True)
class NodeAnswer:
    """What a node of a fleet told; `look` is None, and `problem` says why, where it told nothing.

    `asked`: False where its turn did not come before the deadline: nothing is known of it."""

    fleet: FleetState
    node: NodeState
    look: NodeLook | None = None
    problem: str | None = None
    asked: bool = True


@dataclass(frozen=True)
class ProjectLook:
    """What a look came to, and how long it took in seconds."""

    facts: ProjectFacts
    nodes: tuple[NodeAnswer, ...]
    seconds: float


_Key = tuple[str, str]


class ProjectWatch:
    """Looks at a project whenever it is asked and its last look is older than `shared_s`. Thread-safe.

    `facts` may take long, as where the state is on a server: it is asked in a thread of its own, and while
    it does not come its last answer counts, with every source told as not read.
    """

    def __init__(
        self,
        facts: Callable[[], ProjectFacts],
        connector: Connector,
        *,
        deadline_s: float = DEADLINE_S,
        shared_s: float = SHARED_S,
        runtimes: Mapping[str, JobRuntime] = RUNTIMES,
    ) -> None:
        self._facts, self._connector, self._runtimes = facts, connector, runtimes
        self._deadline_s, self._shared_s = deadline_s, shared_s
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._nodes = ThreadPoolExecutor(FAN_OUT, thread_name_prefix="orch-node")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="orch-facts")
        self._asked: Future[ProjectFacts] | None = None
        self._known = ProjectFacts()
        self._under_way: dict[_Key, Future[NodeLook]] = {}
        self._silent: frozenset[_Key] = frozenset()
        self._last: ProjectLook | None = None
        self._last_at = 0.0
        self._texts: node_look.Texts = {}

    def look(self) -> ProjectLook:
        """The last look where it is new enough, else a new one. Raises what is wrong with orch itself."""
        with self._guard:
            if self._last is None or time.monotonic() - self._last_at >= self._shared_s:
                self._last = self._look()
                self._last_at = time.monotonic()
            return self._last

    def close(self) -> None:
        """End what is under way."""
        self._over.set()
        for pool in (self._nodes, self._reader):
            pool.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> ProjectLook:
        began = time.monotonic()
        facts = self._read_facts(self._deadline_s / 2)
        of = [(fleet, node) for fleet in facts.fleets for node in fleet.nodes]
        # Those that were silent last time come last: they keep nobody waiting who answers.
        futures = {
            (fleet.name, node.name): self._ask(fleet, node)
            for fleet, node in sorted(of, key=lambda each: (each[0].name, each[1].name) in self._silent)
        }
        wait(futures.values(), max(0.0, began + self._deadline_s - time.monotonic()))
        # Whose turn did not come is not dead, and need not be asked any more.
        for each in futures.values():
            each.cancel()
        self._under_way = {key: each for key, each in futures.items() if not each.done()}
        answers = tuple(self._answer(fleet, node, futures[fleet.name, node.name]) for fleet, node in of)
        self._silent = frozenset(
            (each.fleet.name, each.node.name) for each in answers if each.look is None and each.asked
        )
        return ProjectLook(facts, answers, time.monotonic() - began)

    def _read_facts(self, patience_s: float) -> ProjectFacts:
        asked = self._asked or self._reader.submit(self._facts)
        wait([asked], patience_s)
        self._asked = None if asked.done() else asked
        if not asked.done():
            return ProjectFacts(
                **{**vars(self._known), "sources": dict.fromkeys(("state", "ledger", "files"), False)}
            )
        self._known = asked.result()
        return self._known

    def _ask(self, fleet: FleetState, node: NodeState) -> Future[NodeLook]:
        return self._under_way.get((fleet.name, node.name)) or self._nodes.submit(self._ask_now, fleet, node)

    def _ask_now(self, fleet: FleetState, node: NodeState) -> NodeLook:
        command = node_look.command(
            fleet, node, timeout_s=COMMAND_S, runtimes=self._runtimes, texts=self._texts
        )
        done = self._connector.run(
            node, command, deadline_s=0.0, connect_timeout_s=CONNECT_S, until=self._over
        )
        return node_look.read(fleet, node, done.stdout)

    def _answer(self, fleet: FleetState, node: NodeState, future: Future[NodeLook]) -> NodeAnswer:
        if future.cancelled():
            return NodeAnswer(fleet, node, None, "its turn did not come", asked=False)
        if not future.done():
            return NodeAnswer(fleet, node, None, f"no answer within {self._deadline_s:g} s")
        try:
            return NodeAnswer(fleet, node, future.result())
        except OrchError as error:
            return NodeAnswer(fleet, node, None, error.detail or error.summary)


def only(facts: ProjectFacts, fleets: Collection[str]) -> ProjectFacts:
    """What of it is of these fleets; all where there are none."""
    if not fleets:
        return facts
    return ProjectFacts(
        tuple(each for each in facts.fleets if each.name in fleets),
        tuple(each for each in facts.runs if each.fleet in fleets),
        {key: count for key, count in facts.ended.items() if key[0] in fleets},
        tuple(each for each in facts.costs if each.fleet in fleets),
        tuple(each for each in facts.health if each.fleet in fleets),
        sources=facts.sources,
    )


def status_of(answer: NodeAnswer) -> str:
    """The status of a node as `orch fleet` has it."""
    return "unreachable" if answer.look is None else answer.look.status.status


def waiting_s(row: RunRow) -> float | None:
    """How long a run has waited for its commands to begin: in line for nodes, or for its next attempt, or
    while its nodes are prepared. None where they have begun, or it ends."""
    if row.status not in ("pending", "submitted", "provisioning"):
        return None
    since = row.queued_at
    if since is None:
        since = max((each.finished_at for each in row.attempts), default=row.created_at)
    return max(0.0, row.now - since)


def queued(rows: Sequence[RunRow]) -> dict[str, int]:
    """How many runs wait in line for nodes of each fleet."""
    found: dict[str, int] = {}
    for row in rows:
        found[row.fleet] = found.get(row.fleet, 0) + row.in_line
    return found
