"""The plan of a fleet, before or after `up`; and whether a plan that a user saw may still be applied."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from orch.components.deployment import Deployment
from orch.components.explain import known
from orch.components.idleness import resources_of
from orch.components.node_count import PIN as NODES_PIN
from orch.components.request import NewHostKey, NodeProblem, NodeWarning
from orch.policies.settings import Violation
from orch.spec.findings import Finding
from orch.spec.state import WATCHED, FleetHealth, FleetSpares
from orch.stacks.events.changes import Change, PropertyDrift, changes, find_drift
from orch.stacks.plans.headline import NO_HEADLINE, FleetRecord, Headline, headline
from orch.stacks.pulumi.operation import EngineCall
from orch.stacks.pulumi.recovery import same_state
from orch.stacks.stack.state import REASONS, StackExport, StackState

FRESH_S = 30.0
"""Age up to which `up` applies a plan that a user saw, without asking the cloud or the hosts again."""

FileStamps = Mapping[str, tuple[int, int] | None]
"""Files by path: modification time in nanoseconds and size in bytes; None for a file that is missing."""


@dataclass(frozen=True)
class PreparedPlan:
    """Input that `up` needs to apply a plan that a user saw, and to judge if the plan is outdated.

    `recorded`: the state of `stack` when the plan was made, `at` the monotonic time of that.
    `as_recorded`: the engine's refresh before the plan found no drift, so that `up` need not refresh again.
    """

    stack: StackState
    recorded: StackExport | None
    compiled: Deployment
    files: FileStamps
    as_recorded: bool
    at: float = field(default_factory=time.monotonic)

    def outdated(self, files: FileStamps) -> str | None:
        """Return the reason that the plan can no longer be applied; None while it can. `files`: as they are
        now."""
        if changed := [path for path in {*files, *self.files} if files.get(path) != self.files.get(path)]:
            return f"{', '.join(sorted(changed))} changed since"
        if not same_state(self.recorded or {}, self.stack.recorded or {}):
            return "somebody changed the fleet since"
        if time.monotonic() - self.at > FRESH_S:
            return f"it was made more than {FRESH_S:.0f} seconds ago"
        return None


@dataclass(frozen=True)
class Plan:
    """Plan of what `up` would do, or result of what it did. `reasons` explain its decisions.

    `hourly` is the price of the whole fleet afterwards, `delta` the change of it, in US dollars an hour.
    `problems` are nodes that are kept out, or failed while the others did not; `unpriced` names costs that
    are not in `hourly`. `drift` is what the refresh before it found; `headline` sums the changes up.
    `lost_nodes`: present nodes that it removes or replaces. `unrecorded`: the stack has another `nodes` or
    `health` than the file, or nodes that ended themselves. `rewatched`, `respared`: another `health`, another
    number of spares, which `up` records without changing a resource. `former_reasons`: those of the last
    `up`.
    `spares`: how many of its nodes are spares, which cost `spares_hourly` of `hourly`.
    `policies`: what the project's policies say of it. `prepared`: what `up` needs to apply this plan.
    """

    fleet: str
    stack: str
    changes: tuple[Change, ...]
    reasons: tuple[str, ...]
    hourly: float
    delta: float
    problems: tuple[NodeProblem, ...] = ()
    warnings: tuple[NodeWarning, ...] = ()
    new_keys: tuple[NewHostKey, ...] = ()
    findings: tuple[Finding, ...] = ()
    unpriced: tuple[str, ...] = ()
    drift: tuple[PropertyDrift, ...] = ()
    headline: Headline = NO_HEADLINE
    lost_nodes: frozenset[str] = frozenset()
    unrecorded: bool = False
    rewatched: bool = False
    respared: bool = False
    spares: FleetSpares | None = None
    spares_hourly: float = 0.0
    former_reasons: frozenset[str] = frozenset()
    policies: tuple[Violation, ...] = ()
    prepared: PreparedPlan | None = field(default=None, compare=False, repr=False)

    @property
    def pending(self) -> bool:
        return any(change.op != "same" for change in self.changes)

    @property
    def is_due(self) -> bool:
        """Return True if `up` has something to do according to the fleet's file."""
        return self.pending or self.rewatched or self.respared

    @property
    def in_words(self) -> list[str]:
        """Return its changes, each as an operation and a name."""
        return [f"{each.op} {each.name}" for each in self.changes if each.op != "same"]

    @property
    def new_reasons(self) -> tuple[str, ...]:
        """The reasons that the last `up` did not have; none of a plan that changes nothing."""
        if self.former_reasons and not self.pending and not self.unrecorded:
            return ()
        return tuple(reason for reason in self.reasons if reason not in self.former_reasons)


@dataclass(frozen=True)
class PriorFleet:
    """The fleet of a stack before a plan, with its price in US dollars an hour, the `nodes` that it was made
    for, and the explanations of its last `up`."""

    hourly: float
    fleet: FleetRecord
    nodes: str | None = None
    health: FleetHealth = WATCHED
    spares: FleetSpares | None = None
    reasons: frozenset[str] = frozenset()


def prior_fleet(stack: StackState) -> PriorFleet:
    pins: Mapping[str, object] = stack.outputs.get("pins") or {}
    nodes = str(pins[NODES_PIN]) if NODES_PIN in pins else None
    reasons = frozenset(map(str, stack.outputs.get(REASONS) or ()))
    record = FleetRecord(known(stack.outputs), stack.makers)
    return PriorFleet(stack.hourly, record, nodes, stack.health, stack.spares, reasons)


def plan_of(stack: str, before: PriorFleet, compiled: Deployment, run: EngineCall) -> Plan:
    """The plan that an engine call made or applied."""
    failed = run.node_errors() if run.isolated else {}
    unfit = {problem.node for problem in compiled.problems}
    engine_problems = [_node_problem(name, text) for name, text in failed.items()]
    # A host that was unfit when it was planned fails in the engine for the same reason; only the engine finds
    # that it differs from its record.
    problems = [
        *compiled.problems,
        *(p for p in engine_problems if p.node not in unfit or p.code == "ORCH385"),
    ]
    gone = resources_of(compiled.ended)
    applied = tuple(
        change
        for change in changes(run.events)
        if change.name not in failed and not (change.op == "delete" and change.name in gone)
    )
    rewatched = bool(before.fleet.nodes) and compiled.health != before.health
    respared = bool(before.fleet.nodes) and _count(compiled.spares) != _count(before.spares)
    return Plan(
        stack,
        stack,
        applied,
        compiled.reasons,
        compiled.hourly,
        money(compiled.hourly - before.hourly),
        problems=tuple(problems),
        warnings=compiled.warnings,
        new_keys=compiled.new_keys,
        findings=compiled.findings,
        unpriced=compiled.unpriced,
        drift=tuple(each for each in find_drift(run.events) if each.name not in gone),
        headline=headline(applied, before.fleet, compiled),
        lost_nodes=lost_nodes(before.fleet.nodes, compiled, applied),
        unrecorded=bool(compiled.ended)
        or (before.nodes is not None and compiled.pins.get(NODES_PIN) != before.nodes)
        or rewatched
        or compiled.spares != before.spares,
        rewatched=rewatched,
        respared=respared,
        spares=compiled.spares,
        spares_hourly=_spares_hourly(compiled),
        former_reasons=before.reasons,
    )


def lost_nodes(
    before: Mapping[str, str], compiled: Deployment, engine_changes: Iterable[Change] = ()
) -> frozenset[str]:
    """Nodes that a plan removes or replaces: those it no longer has, and those whose resource the engine's
    changes delete or replace. `before`: each existing node with the resource that made it.

    Nodes that ended themselves are not present."""
    before = {node: maker for node, maker in before.items() if node not in compiled.ended}
    if compiled.moves:
        return frozenset(before)
    removed = {
        change.name
        for change in engine_changes
        if change.op in ("delete", "replace") and not _is_fleet(change)
    }
    return frozenset(node for node, maker in before.items() if node not in compiled.nodes or maker in removed)


def _is_fleet(change: Change) -> bool:
    return change.type.startswith("orch:fleet:")


def _spares_hourly(compiled: Deployment) -> float:
    """Return the price of the spares of a planned fleet, from the mean of its nodes: which nodes are spares
    changes."""
    priced = [(len(each.nodes), each.price) for each in compiled.priced]
    number = sum(count for count, _ in priced)
    if compiled.spares is None or not number:
        return 0.0
    mean = sum(count * (price or 0.0) for count, price in priced) / number
    return money(mean * min(compiled.spares.count, number))


def _count(spares: FleetSpares | None) -> int:
    return spares.count if spares is not None else 0


_ONE_LINE = re.compile(
    r"(?:(?P<where>\S+): )?(?:(?P<code>ORCH\d+) )?(?P<summary>[^;]*)(?:; (?P<detail>.*))?", re.S
)


def _node_problem(name: str, text: str) -> NodeProblem:
    """The fields of a problem that a provider reported in one line."""
    match = _ONE_LINE.fullmatch(text)
    if match is None:
        return NodeProblem(text, node=name)
    detail = match["detail"].replace("; ", "\n") if match["detail"] else None
    return NodeProblem(match["summary"], node=name, where=name, detail=detail, code=match["code"])


def money(amount: float) -> float:
    """US dollars rounded to six digits, never -0.0."""
    return round(amount, 6) + 0.0
