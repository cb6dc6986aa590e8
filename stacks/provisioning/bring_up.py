"""Brings a fleet up where there is capacity: tries its places in turn, creates all of its nodes or none."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orch.catalog import shortages
from orch.catalog.shortages import Shortage
from orch.components.cloud.node_groups import may_spread
from orch.components.deployment import Deployment, Place
from orch.components.file_systems import words_of
from orch.components.node_count import is_range
from orch.components.request import CloudAnswer, NodeWarning, PlanRequest, RecordedFileSystem
from orch.spec.errors import OrchError
from orch.spec.rules.unsupported import acted_on
from orch.spec.suggest import counted
from orch.stacks.engine.process import Event
from orch.stacks.errors import EngineFailed, NoCapacity, StackError
from orch.stacks.events.notation import name_of
from orch.stacks.plans.guard import Guard
from orch.stacks.plans.request import FleetRequest, compile_for, compile_there, plan_request
from orch.stacks.provisioning.gang import Gang, events_except
from orch.stacks.provisioning.next_step import Nodes, Outcome, State, Then, next_step
from orch.stacks.provisioning.policies import refuse_violations
from orch.stacks.pulumi.accounts import give_up
from orch.stacks.pulumi.leasing import StackFence
from orch.stacks.pulumi.operation import EngineCall
from orch.stacks.pulumi.progress import Activity, Listener, Note
from orch.stacks.stack.state import StackState

NOTHING_LEFT = "nothing of it is left"


@dataclass(frozen=True)
class Attempt:
    """A place that failed, and why."""

    place: str
    reason: str


def bring_up(
    stack: StackState,
    request: FleetRequest,
    first: Deployment,
    listener: Listener,
    *,
    skip_refresh: bool = False,
    guard: Guard | None = None,
) -> tuple[Deployment, EngineCall]:
    """Bring a fleet up; returns the plan that was applied, and the engine call that applied it.

    `first`: the plan for the first place. `skip_refresh`: the engine has just found no drift. A place without
    capacity is rolled back before the next one is tried. An error that no other place avoids (quota,
    permission, parameters) stops at once. A cluster that is up never moves: growth that does not fit is
    rolled back. A fleet that may have fewer nodes keeps those it got; the plan's warnings name the others.
    `guard` holds it to an approved plan: no other place is tried.

    Raises NoCapacity with every place tried, StackError, Interrupted.
    """
    if is_range(request.fleet.nodes):
        request = replace(request, count=len(first.nodes))  # what is planned again asks for as many
    data = frozenset(each.urn for each in stack.file_systems)
    # Made while the record tells where the nodes are that may find no other place.
    unmoved = plan_request(stack, replace(request, leaving=frozenset())) if request.leaving else None
    before = {node: maker for node, maker in stack.makers.items() if node not in first.ended}
    gang = Gang(stack, request, listener, before, first.answer, data, guard, StackFence(stack))
    if first.only is None and not first.elsewhere:
        call, failed = gang.apply(first, skip_refresh=skip_refresh)
        if failed is not None:
            raise failed
        return first, call
    if first.moves:
        if guard is not None:
            guard.enter()
        listener(Note("the file does not allow the place where the fleet is: it is removed there first"))
        gang.remove()
        gang = replace(gang, before={})
    return _Search(gang, first, unmoved, skip_refresh and not first.moves).run()


@dataclass
class _Search:
    """The search for a place with room, from the plan for the `first` one.

    `unmoved`: see `_roll_back`. `skip_refresh`: the engine has just found no drift.
    """

    gang: Gang
    first: Deployment
    unmoved: PlanRequest | None
    skip_refresh: bool
    tried: list[Attempt] = field(default_factory=list[Attempt])
    visited: set[str] = field(default_factory=set[str])
    partial: _PartialFleet | None = None

    def run(self) -> tuple[Deployment, EngineCall]:
        """Return the plan that was applied, and the call that applied it. Raises as `bring_up`."""
        places = deque(_places(self.first)[: 1 if self.gang.guard is not None else None])
        while places:  # it grows: a region names its zones when it is tried
            place = places.popleft()
            if place.words in self.visited or (compiled := self._plan(place)) is None:
                continue
            where = compiled.place or place.words
            if self.gang.guard is None:
                places.extendleft(reversed(compiled.elsewhere))
            if where in self.visited:
                continue  # the first zone that a region names may be visited already
            self.visited.add(where)
            call, failed = self._apply(compiled, where)
            if failed is None and not call.node_errors():
                return compiled, call
            then = self._settle(compiled, where, call, failed, len(places))
            if then is Then.STOP:
                break
            if then is Then.MORE:
                places = deque(self.first.more())
            elif then is Then.ANEW:
                places = deque(self._places_anew())
        if self.partial is not None:
            return _partial_result(self.gang, self.partial, self.tried)
        raise self._no_room()

    def _plan(self, place: Place) -> Deployment | None:
        """Return the plan for a place, None if there is none. Raises OrchError for the first place."""
        try:
            compiled = place.compile()
            if compiled is not self.first:
                refuse_violations(self.gang.stack, self.gang.request, compiled, self.gang.listener)
        except OrchError as error:
            if not self.tried:
                raise
            self.visited.add(place.words)
            self.tried.append(Attempt(place.words, error.summary))
            return None
        self.gang = replace(self.gang, classify=compiled.answer)
        return compiled

    def _apply(self, compiled: Deployment, where: str) -> tuple[EngineCall, EngineFailed | None]:
        self.gang.listener(Note(f"trying {where}", lasts=True))
        earlier = self.partial.events if self.partial else ()
        skip_refresh = self.skip_refresh and compiled is self.first
        return self.gang.apply_with_retries(compiled, earlier, skip_refresh=skip_refresh)

    def _settle(
        self, compiled: Deployment, where: str, call: EngineCall, failed: EngineFailed | None, places: int
    ) -> Then:
        """Keep or roll back what a failed call left, and return what comes next. `places`: number of those
        that are left. Raises StackError where no other place helps."""
        gang, answer = self.gang, self.gang.answer(call, failed)
        existing = tuple(name for name in gang.existing(compiled) if name in compiled.nodes)
        state = State(
            before=frozenset(gang.before),
            stays=gang.stays,
            spreads=may_spread(gang.request.fleet),
            bound=gang.guard is not None,
            partial=self.partial is not None,
            tried=len(self.tried),
            places=places,
        )
        divisible = compiled.only is not None
        step = next_step(
            state, Outcome(failed is not None, answer, frozenset(existing), divisible, compiled.whole)
        )
        if failed is not None and step.then is Then.RAISE:
            raise failed
        remains = "existing nodes are kept"
        if step.nodes is Nodes.KEPT:
            self.partial = _keep_partial(gang, compiled, call, existing)
        elif step.nodes is Nodes.ROLLED_BACK:
            remains = _roll_back(gang, compiled, lost=step.lost, unmoved=self.unmoved)
        if step.then is Then.REFUSE:
            if remains == NOTHING_LEFT:
                give_up(gang.stack)
            failed = failed or _all_failed(gang.request, call)
            raise _refused(gang.request, answer, failed, remains) from failed
        self.tried.append(Attempt(where, answer.reason if answer else "it was refused"))
        if answer is not None and answer.elsewhere:
            shortages.add(gang.stack.project.shortages, list(_shortages(compiled)), time.time())
            gang.listener(Note(f"no room there: {answer.reason}"))
        return step.then

    def _places_anew(self) -> Sequence[Place]:
        """Plan again from what exists, and return the places of that plan."""
        self.gang = replace(self.gang, before=self.gang.stack.makers)
        replanned = compile_for(self.gang.stack, self.gang.request)
        if self.gang.before:
            return replanned.more()
        return () if self.gang.stays else _places(replanned)

    def _no_room(self) -> NoCapacity:
        """Return the error for a fleet without room; one of which nothing is left gives up its accounts."""
        gang = self.gang
        if gang.before:
            return _no_room_to_grow(gang.request, len(gang.before), self.tried)
        if kept := gang.kept_data:
            return _no_room_beside(gang.request, kept, self.tried)
        give_up(gang.stack)
        return _no_room(gang.request, self.tried, self.first.pins.get("backend", ""))


def _shortages(compiled: Deployment) -> Iterator[Shortage]:
    """Yield the shortage that a plan found: that of the last of its node groups, for the others stayed in
    place."""
    region = compiled.pins.get("region")
    for each in compiled.priced[-1:]:
        if region:
            spot = each.market == "spot"
            yield Shortage(each.backend, each.machine, region, each.place, spot, int(time.time()))


def _places(compiled: Deployment) -> list[Place]:
    """The place of a plan, then the others that it may go to."""
    return [Place(compiled.place or "", lambda: compiled), *compiled.elsewhere]


def _roll_back(
    gang: Gang, compiled: Deployment, *, lost: bool = False, unmoved: PlanRequest | None = None
) -> str:
    """Restore what existed before: nothing, or the fleet with its former nodes and file systems. Returns the
    result in words.

    `lost`: some of the former nodes are gone; they are recorded as gone. `unmoved`: they were to move; those
    that could not are where that says, and what was made for them elsewhere goes.
    """
    gang.listener(Activity(f"rolling back the fleet {gang.request.name}"))
    if not gang.stays:
        gang.remove(frozenset({compiled.shared.stack}) if compiled.shared else frozenset())
        return NOTHING_LEFT
    if unmoved is not None:
        there = compile_there(gang.stack, unmoved)
        gang.keep_only(there, [name for name in gang.existing(there) if name in gang.before])
        return "existing nodes are kept"
    if set(compiled.nodes) <= set(gang.before) and not lost:
        return "existing nodes are kept"
    remaining = [name for name in gang.existing(compiled) if name in gang.before]
    if not remaining and gang.kept_data:
        gang.keep_only(compiled, [])
        return "its file systems are kept, with their data"
    if not remaining:
        gang.remove()
        return NOTHING_LEFT
    gang.keep_only(compiled, remaining)
    return f"the fleet has its {counted(len(gang.before), 'node')} as before"


@dataclass(frozen=True)
class _PartialFleet:
    """A fleet that is up with fewer nodes than requested. `missing`: the error of each missing node."""

    compiled: Deployment
    call: EngineCall
    events: tuple[Event, ...]
    missing: Mapping[str, str]


def _keep_partial(
    gang: Gang, compiled: Deployment, call: EngineCall, existing: Sequence[str]
) -> _PartialFleet:
    """Keep the nodes that exist."""
    # The fleet's output depends on all of its nodes: it is recorded again without the missing ones.
    kept = gang.keep_only(compiled, existing)
    missing = call.node_errors()
    events = events_except(call.events, {urn for urn in call.errors if name_of(urn) in missing})
    gang.listener(Note(f"kept {len(existing)} of {len(compiled.nodes)} nodes"))
    return _PartialFleet(kept, call, tuple(events), missing)


def _partial_result(
    gang: Gang, partial: _PartialFleet, tried: Sequence[Attempt]
) -> tuple[Deployment, EngineCall]:
    """The plan and call of a fleet with fewer nodes than requested. Raises NoCapacity below the minimum."""
    kept, count = partial.compiled, len(partial.compiled.nodes)
    warnings = tuple(
        NodeWarning(name, f"not made: {answer.reason if (answer := kept.answer(text)) else text}")
        for name, text in sorted(partial.missing.items())
    )
    nodes = gang.request.fleet.nodes
    if nodes is not None and count < (nodes.min or 0):
        raise NoCapacity(
            f"fleet {gang.request.name} has {counted(count, 'node')}, fewer than the {nodes.min} it needs",
            detail="\n".join(f"{each.place}: {each.reason}" for each in tried),
            hint="they are kept: `orch up` tries for the others, `orch down` removes them",
            code="ORCH325",
        )
    call = replace(partial.call, events=list(partial.events), errors={})
    return replace(kept, warnings=(*kept.warnings, *warnings)), call


def _all_failed(request: FleetRequest, call: EngineCall) -> EngineFailed:
    return EngineFailed(
        f"no node of the fleet {request.name} could be created",
        errors=call.errors,
        detail=call.error_text(),
        code="ORCH347",
    )


def _refused(
    request: FleetRequest, answer: CloudAnswer | None, failed: EngineFailed, remains: str
) -> StackError:
    detail = f"{failed.detail}\n{remains}" if failed.detail else remains
    if answer is None:
        return EngineFailed(
            failed.summary, errors=failed.errors, detail=detail, hint=failed.hint, code=failed.code
        )
    return StackError(
        f"up failed for fleet {request.name}: {answer.reason}",
        detail=detail,
        hint=answer.hint,
        code=answer.code,
    )


def _no_room(request: FleetRequest, tried: Sequence[Attempt], backend: str) -> NoCapacity:
    zones = "`availability_zones`, " if "availability_zones" in acted_on(backend) else ""
    places = "the only place" if len(tried) == 1 else f"any of {len(tried)} places"
    return NoCapacity(
        f"there is no room for the fleet {request.name} in {places}; nothing of it is left",
        detail="\n".join(f"{each.place}: {each.reason}" for each in tried),
        hint=f"try later, or widen `regions`, {zones}`instance_types` or `max_price`",
        code="ORCH325",
    )


def _no_room_to_grow(request: FleetRequest, count: int, tried: Sequence[Attempt]) -> NoCapacity:
    return NoCapacity(
        f"there is no room for more nodes beside the {count} of the fleet {request.name}; it is as it was",
        detail="\n".join(f"{each.place}: {each.reason}" for each in tried),
        hint="try later, or bring up a second fleet elsewhere: a cluster that is up is not moved",
        code="ORCH325",
    )


def _no_room_beside(
    request: FleetRequest, kept: Sequence[RecordedFileSystem], tried: Sequence[Attempt]
) -> NoCapacity:
    return NoCapacity(
        f"there is no room for nodes of the fleet {request.name} where its file systems are; they are kept",
        detail="\n".join([*(f"{each.place}: {each.reason}" for each in tried), *map(words_of, kept)]),
        hint=f"try later; `orch down {request.name}` deletes the fleet with its data",
        code="ORCH325",
    )
