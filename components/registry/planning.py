"""Backends by name, and where among them a fleet goes.

Those of this package are found by their folder, those of others by an entry point (see `base.py`); each is
imported when something is asked of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from orch.components.base import Candidate
from orch.components.cloud.evacuation import evacuated_note, outside_evacuated
from orch.components.deployment import Deployment, Place, Room
from orch.components.idleness import ended_reason, idle_rule, may_end
from orch.components.lifetime import is_over
from orch.components.node_count import as_template, is_template, recorded_minimum, with_node_count
from orch.components.registry.backends import backend, require_backend
from orch.components.request import PlanRequest, PriorState
from orch.spec.diagnostics import Severity
from orch.spec.errors import OrchError
from orch.spec.findings import Finding, PlanError, PlanErrors, settle
from orch.spec.grammar.values import render_duration
from orch.spec.models import Fleet, Health
from orch.spec.models.backends import effective, provisioned, queues_pods
from orch.spec.models.backends.base import BackendSettings
from orch.spec.rules.unsupported import backends_hint
from orch.spec.state import FleetHealth, FleetSpares
from orch.spec.suggest import counted, few

LOCAL = "local"


def compile_fleet(request: PlanRequest) -> Deployment:
    """Plan a fleet at the best of its candidates, of all its backends in one order by price.

    A fleet that is up stays where it is, as long as its file permits. A backend that cannot be asked, or has
    no plan, is told of, and the next one is taken. The other candidates are planned when they are tried.

    Raises PlanErrors, and what asking the only backend raises.
    """
    request = with_node_count(with_hosts(request))
    deployment = _planned(request, candidates_of(request))
    refusals = list(_distinct_refusals(request))
    findings = check_total_budget(request, deployment)
    reasons = [
        f"not on {place}: {error.summary}" for place, error in refusals if isinstance(error, PlanErrors)
    ]
    warnings = tuple(_warning(*each) for each in refusals if not isinstance(each[1], PlanErrors))
    ended = request.previous.ended.difference(deployment.nodes)
    if ended:
        reasons.append(ended_reason(sorted(ended)))
    usable = effective(request.fleet.written_backends, tuple(each.type for each in request.settings))
    if (words := health_words(request.fleet.health)) is not None:
        reasons.append(words)
    if (spares := spares_of(request)) is not None:
        reasons.append(spares_words(spares))
    if request.fleet.ssh_config is None and usable and request.backends[0] not in usable:
        at = request.backends[0]
        reasons.append(f"it stays on {at}, where it is: write `backends: [{usable[0]}]` to move it")
    return replace(
        deployment,
        reasons=(*deployment.reasons, *reasons),
        findings=(*deployment.findings, *warnings, *findings, *evacuated_note(request)),
        ended=ended,
    )


def with_hosts(request: PlanRequest) -> PlanRequest:
    """The same, with hosts where the fleet's file names a cluster that is there already.

    Raises PlanErrors, and what asking the backend raises."""
    fleet = request.fleet
    named = {str(each["type"]) for each in fleet.backend_options if "cluster" in each}
    for name in request.backends if fleet.ssh_config is None else ():
        if name in named and (config := require_backend(name).hosts(request)) is not None:
            return replace(request, fleet=fleet.model_copy(update={"ssh_config": config}))
    return request


def watched(fleet: Fleet) -> FleetHealth:
    """How the health of a fleet's nodes is watched, as it is recorded with the fleet."""
    health = fleet.health
    return FleetHealth(
        gate=health.gate,
        interval_s=health.interval_s,
        min_busbw=health.min_busbw,
        auto_replace=health.auto_replace,
        max_replacements=health.max_replacements,
    )


def spares_of(request: PlanRequest) -> FleetSpares | None:
    """The spares of a fleet whose `nodes` are those that it is to have; None where it has none."""
    nodes = request.fleet.nodes
    if nodes is None or not nodes.spare:
        return None
    rule = idle_rule(request.fleet)
    return FleetSpares(count=nodes.spare, of=nodes.target, least=rule.least if rule is not None else None)


def spares_words(spares: FleetSpares) -> str:
    """What a plan says of the spares of a fleet."""
    verb, them = ("is a spare", "it") if spares.count == 1 else ("are spares", "them")
    words = f"{spares.count} of {counted(spares.of, 'node')} {verb}"
    return f"{words}: runs get {them} only in place of nodes that fail"


def health_words(health: Health) -> str | None:
    """How the health of nodes is watched, in words; None where the file leaves it as it is."""
    if health == Health():
        return None
    if health.gate == "none":
        return "health: nodes take jobs without being examined first"
    words = [
        f"health: nodes pass the gate `{health.gate}` first, and are examined every "
        f"{render_duration(health.interval_s)}"
    ]
    if health.min_busbw is not None:
        words.append(f"their interconnect must reach {health.min_busbw} GB/s")
    if health.auto_replace:
        words.append(f"up to {counted(health.max_replacements, 'node')} that failed a day are replaced")
    return "; ".join(words)


def check_total_budget(request: PlanRequest, deployment: Deployment) -> tuple[Finding, ...]:
    """Warnings on what the fleet has cost so far. Raises PlanErrors where it may get no new node."""
    budget = request.fleet.budget
    if budget is None or budget.total is None or request.spent is None:
        return ()
    from orch.components.cloud.sizing import total_budget_findings

    recorded = frozenset(node.name for node in request.previous.nodes)
    existing = recorded if request.previous.existing_nodes is None else request.previous.existing_nodes
    new = len(set(deployment.nodes) - existing)
    return settle(total_budget_findings(budget, request.spent, new))


def ended_nodes(
    previous: PriorState, settings: Iterable[BackendSettings], session: Callable[[str], Any]
) -> frozenset[str]:
    """Names of the recorded nodes that ended themselves, asked where the nodes of the fleet do that.

    Raises what asking the backend raises.
    """
    asked = may_have_ended(previous)
    if not asked.nodes or asked.backend is None:
        return frozenset()
    return require_backend(asked.backend).ended_nodes(asked, settings, session)


def may_have_ended(previous: PriorState) -> PriorState:
    """Return the same with those recorded nodes alone that may end themselves; none where nodes do not."""
    over = is_over(previous.pins, time.time())
    least = 0 if over else recorded_minimum(previous.pins)  # of which none ends itself
    ends = previous.backend is not None and (over or may_end(previous.pins))
    return replace(previous, nodes=tuple(node for node in previous.nodes if ends and node.index >= least))


def candidates_of(request: PlanRequest) -> tuple[Candidate, ...]:
    """Where the fleet may go, in the order to try. Backends that have no such place, or cannot say, are in
    the request's `refused`."""
    lists: list[Sequence[Candidate]] = []
    at = request.at
    for name in sorted(request.backends, key=lambda each: each != at):  # where it is before all others
        try:
            lists.append(outside_evacuated(request, require_backend(name).candidates(request)))
        except OrchError as error:
            if name == at:
                raise  # a mistake in the file takes no fleet from its backend
            request.refused[name] = error
        else:
            if lists[-1] and lists[-1][0].kept:
                request.refused.clear()
                return tuple(lists[-1])
    # Nothing is cheaper than this machine: beside it the order of the file counts.
    order = chain.from_iterable if LOCAL in request.backends else by_price
    return tuple(order(lists))


def by_price(lists: Iterable[Sequence[Candidate]]) -> Iterator[Candidate]:
    """The candidates of several backends: the cheapest of their next ones is next, each keeps its order."""
    queues = [deque(each) for each in lists if each]
    while queues:
        best = min(queues, key=lambda each: float("inf") if each[0].price is None else each[0].price)
        yield best.popleft()
        queues = [each for each in queues if each]


def _planned(request: PlanRequest, candidates: Sequence[Candidate]) -> Deployment:
    """The fleet planned at the first of the candidates where it can be; the others as places to try.

    Raises PlanErrors, and what asking the only backend raises.
    """
    remaining = tuple(candidates)
    while remaining:
        first, head = remaining[0], backend(remaining[0].backend)
        count = next((i for i, each in enumerate(remaining) if each.backend != head.name), len(remaining))
        settled: Sequence[Candidate] = ()
        try:
            settled = head.settle(request, remaining[:count])
            first, *others = remaining = (*settled, *remaining[count:])
            return _deployment(request, first, others)
        except OrchError as error:
            if first.kept or head.name == request.at:
                raise
            region = head.refused_region(error, first)
            request.refused.setdefault(f"{head.name} in {region}" if region else head.name, error)
            if isinstance(error, PlanErrors) and not settled:
                # The backend has none of these; its others cost more than those of another backend.
                remaining = remaining[count:]
            else:
                remaining = tuple(
                    each for each in remaining if each.backend != head.name or _elsewhere(each, region)
                )
    raise _none(request)


def _elsewhere(candidate: Candidate, region: str | None) -> bool:
    """Whether a candidate is in another region than this one, if any."""
    return region is not None and getattr(candidate, "region", None) != region


def _deployment(request: PlanRequest, first: Candidate, others: Sequence[Candidate]) -> Deployment:
    planned = backend(first.backend).deployment(request, first)
    planned = replace(planned, health=watched(request.fleet), spares=spares_of(request))
    if is_template(request) and not queues_pods(first.backend):
        return as_template(request, first.backend, planned)
    deployment = replace(planned, elsewhere=_places(request, others))
    return replace(deployment, more=partial(_more, request, first)) if first.kept else deployment


def _more(request: PlanRequest, kept: Candidate) -> tuple[Place, ...]:
    """Where nodes may go that the place where the fleet is has no room for."""
    return _places(request, backend(kept.backend).more_places(request, kept))


def _places(request: PlanRequest, candidates: Sequence[Candidate]) -> tuple[Place, ...]:
    return tuple(Place(each.words, partial(_planned_at, request, each)) for each in candidates)


def _planned_at(request: PlanRequest, candidate: Candidate) -> Deployment:
    """The fleet planned at one candidate; where its backend tells only then what that is, the others of it as
    places to try."""
    first, *others = backend(candidate.backend).settle(request, (candidate,))
    return _deployment(request, first, others)


def _distinct_refusals(request: PlanRequest) -> Iterator[tuple[str, OrchError]]:
    """What was refused, each with the places that it was refused at: the same reason once."""
    places: dict[tuple[str | None, str], list[str]] = {}
    errors = dict[tuple[str | None, str], OrchError]()
    for place, error in request.refused.items():
        places.setdefault((error.code, error.summary), []).append(place)
        errors.setdefault((error.code, error.summary), error)
    for key, error in errors.items():
        yield few(places[key]), error


def _warning(place: str, error: OrchError, severity: Severity = Severity.WARNING) -> Finding:
    summary = f"not on {place}: {error.summary}"
    return Finding(error.code or "ORCH201", "backends", summary, error.detail, error.hint, severity)


def _none(request: PlanRequest) -> OrchError:
    """Why the fleet can go nowhere: all reasons together."""
    refusals = list(_distinct_refusals(request))
    if len(refusals) == 1:
        return refusals[0][1]
    if refusals:
        findings = [each for _, error in refusals if isinstance(error, PlanErrors) for each in error.findings]
        others = [_warning(*each, Severity.ERROR) for each in refusals if not isinstance(each[1], PlanErrors)]
        return PlanErrors([*findings, *others])
    return PlanError(
        "ORCH201",
        f"this version provisions {', '.join(provisioned())} only, not {', '.join(request.fleet.backends)}",
        path="backends",
        hint=backends_hint(each.type for each in request.settings),
    )


def moves_singly(request: PlanRequest) -> bool:
    """Whether nodes of a fleet that is up can be moved to another zone one by one."""
    request = with_node_count(with_hosts(request))
    first = candidates_of(request)[0]
    return first.kept and backend(first.backend).spreads(request, first)


def room_for(request: PlanRequest, name: str, count: int, mark: str) -> Room | None:
    """See `Backend.room`."""
    return require_backend(name).room(with_node_count(with_hosts(request)), count, mark)
