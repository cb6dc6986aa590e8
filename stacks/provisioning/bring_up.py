"""Bringing a fleet up where there is room: its places are tried in turn, all of its nodes made or none."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orch.components.cloud.node_groups import may_spread
from orch.components.deployment import Deployment, Place
from orch.components.request import CloudAnswer, NodeWarning
from orch.spec.errors import OrchError
from orch.spec.suggest import counted
from orch.stacks.errors import EngineFailed, NoCapacity, StackError
from orch.stacks.provisioning.gang import Gang, besides
from orch.stacks.pulumi.changes import name_of
from orch.stacks.pulumi.operation import Doing, EngineCall, Listener, Note
from orch.stacks.pulumi.process import Event
from orch.stacks.request import FleetRequest, compile_for
from orch.stacks.state import StackState


@dataclass(frozen=True)
class Attempt:
    """A place that did not do, and why."""

    place: str
    reason: str


def bring_up(
    stack: StackState, request: FleetRequest, first: Deployment, listener: Listener, *, looked: bool = False
) -> tuple[Deployment, EngineCall]:
    """The plan that was carried out, and the engine's call that did it. `looked`: the engine has just seen
    that all is as recorded.

    A place without room is left as it was found before the next one is tried. What trying elsewhere cannot
    mend (quota, permission, parameters) stops at once. A cluster that is up is never moved: growth that does
    not fit is taken back. Where a fleet may be short of nodes, those it got stay, and the others are among
    the plan's warnings.

    Raises NoCapacity with every place tried, StackError, Interrupted.
    """
    gang = Gang(stack, request, listener, stack.makers, first.answer)
    if first.only is None and not first.elsewhere:
        call, failed = gang.bring(first, looked=looked)
        if failed is not None:
            raise failed
        return first, call
    if first.moves:
        listener(Note("the file does not allow the place where the fleet is: it is removed there first"))
        gang.remove()
        gang = replace(gang, before={})
    tried: list[Attempt] = []
    been = set[str]()
    short: _Short | None = None
    places = deque([Place(first.place or "", lambda: first), *first.elsewhere])
    while places:  # more come on the way: zones of a region that is asked for them when it is tried
        place = places.popleft()
        if place.words in been:
            continue
        try:
            compiled = place.compile()
        except OrchError as refused:
            if not tried:
                raise
            been.add(place.words)
            tried.append(Attempt(place.words, refused.summary))
            continue
        gang = replace(gang, read=compiled.answer)
        where = compiled.place or place.words
        places.extendleft(reversed(compiled.elsewhere))
        if where in been:
            continue  # a region that was asked for its zones begins with one that was tried
        been.add(where)
        listener(Note(f"trying {where}", lasts=True))
        looked = looked and compiled is first and not first.moves
        call, failed = gang.persist(compiled, short.events if short else (), looked=looked)
        if failed is None and not call.node_errors():
            return compiled, call
        answer = gang.answer(call, failed)
        there = tuple(name for name in gang.there(compiled) if name in compiled.nodes)
        leads_on = answer is not None and answer.elsewhere and not gang.before
        if failed is not None and compiled.only is None and not leads_on:
            raise failed  # what is there is kept: this backend cannot have some of its nodes alone
        recorded = bool(there) and not compiled.whole and compiled.only is not None
        if recorded:
            if failed is not None:
                raise _refused(request, answer, failed, "what is there is kept") from failed
            short = _kept(gang, compiled, call, there)
            left = "what is there is kept"
        else:
            failed = failed or _all_failed(request, call)
            recorded = _spreads(gang, answer) and not set(gang.before) <= set(there)
            left = _taken_back(gang, compiled, lost=recorded)
        if answer is None or not answer.elsewhere:
            if short is not None:
                tried.append(Attempt(where, answer.reason if answer else "it was refused"))
                break
            raise _refused(request, answer, failed or _all_failed(request, call), left) from failed
        tried.append(Attempt(where, answer.reason))
        listener(Note(f"no room there: {answer.reason}"))
        if recorded:  # from what is there now
            gang = replace(gang, before=stack.makers)
            afresh = compile_for(stack, request)
            again = [Place(afresh.place or "", lambda made=afresh: made), *afresh.elsewhere]
            places = deque(afresh.more() if gang.before else again)
        elif gang.before and len(tried) == 1:
            # Nodes that are up stay; the others may go where there is room.
            places = deque(first.more())
        elif not gang.before and not places and len(tried) == 1:
            # Where an earlier call was stopped is no longer where the fleet has to be.
            afresh = compile_for(stack, request)
            places = deque([Place(afresh.place or "", lambda made=afresh: made), *afresh.elsewhere])
    if short is not None:
        return _with_fewer(gang, short, tried)
    if gang.before:
        raise _no_room_to_grow(request, len(gang.before), tried)
    raise _no_room(request, tried)


def _spreads(gang: Gang, answer: CloudAnswer | None) -> bool:
    """Whether nodes that are missing may go elsewhere than the fleet is."""
    no_room = answer is not None and answer.elsewhere
    return no_room and bool(gang.before) and may_spread(gang.request.fleet)


def _taken_back(gang: Gang, compiled: Deployment, *, lost: bool = False) -> str:
    """Leave what was there before, nothing or the fleet with the nodes it had; what is so now, in words.

    `lost`: some of these are gone, and it is recorded so.
    """
    gang.listener(Doing(f"taking back what was begun of {gang.request.name}"))
    if not gang.before:
        gang.remove(frozenset({compiled.shared.stack}) if compiled.shared else frozenset())
        return "nothing of it is left"
    if set(compiled.nodes) <= set(gang.before) and not lost:
        return "what is there is kept"
    still = [name for name in gang.there(compiled) if name in gang.before]
    if not still:
        gang.remove()
        return "nothing of it is left"
    gang.keep(compiled, still)
    return "it is as it was, with " + counted(len(gang.before), "node")


@dataclass(frozen=True)
class _Short:
    """A fleet that is up with fewer nodes than it asked for. `missing`: the error of each that is missing."""

    kept: Deployment
    wanted: int
    call: EngineCall
    events: tuple[Event, ...]
    missing: Mapping[str, str]


def _kept(gang: Gang, compiled: Deployment, call: EngineCall, there: Sequence[str]) -> _Short:
    """Keep the nodes that are there."""
    # What a runner is told of the fleet hangs on all of its nodes: it is recorded anew without the others.
    kept = gang.keep(compiled, there)
    missing = call.node_errors()
    events = besides(call.events, {urn for urn in call.errors if name_of(urn) in missing})
    gang.listener(Note(f"kept {len(there)} of {len(compiled.nodes)} nodes"))
    return _Short(kept, len(compiled.nodes), call, tuple(events), missing)


def _with_fewer(gang: Gang, short: _Short, tried: Sequence[Attempt]) -> tuple[Deployment, EngineCall]:
    """A fleet that keeps fewer nodes than it asked for. Raises NoCapacity when they are too few."""
    kept, count = short.kept, len(short.kept.nodes)
    warnings = tuple(
        NodeWarning(name, f"not made: {answer.reason if (answer := kept.answer(text)) else text}")
        for name, text in sorted(short.missing.items())
    )
    nodes = gang.request.fleet.nodes
    if nodes is not None and count < (nodes.min or 0):
        raise NoCapacity(
            f"fleet {gang.request.name} has {counted(count, 'node')}, fewer than the {nodes.min} it needs",
            detail="\n".join(f"{each.place}: {each.reason}" for each in tried),
            hint="they are kept: `orch up` tries for the others, `orch down` removes them",
            code="ORCH325",
        )
    call = replace(short.call, events=list(short.events), errors={})
    return replace(kept, warnings=(*kept.warnings, *warnings)), call


def _all_failed(request: FleetRequest, call: EngineCall) -> EngineFailed:
    return EngineFailed(
        f"not one node of the fleet {request.name} could be made",
        errors=call.errors,
        detail=call.error_text(),
        code="ORCH347",
    )


def _refused(
    request: FleetRequest, answer: CloudAnswer | None, failed: EngineFailed, left: str
) -> StackError:
    detail = f"{failed.detail}\n{left}" if failed.detail else left
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


def _no_room(request: FleetRequest, tried: Sequence[Attempt]) -> NoCapacity:
    places = "the only place" if len(tried) == 1 else f"any of {len(tried)} places"
    return NoCapacity(
        f"there is no room for the fleet {request.name} in {places}; nothing of it is left",
        detail="\n".join(f"{each.place}: {each.reason}" for each in tried),
        hint="try later, or widen `regions`, `availability_zones`, `instance_types` or `max_price`",
        code="ORCH325",
    )


def _no_room_to_grow(request: FleetRequest, count: int, tried: Sequence[Attempt]) -> NoCapacity:
    return NoCapacity(
        f"there is no room for more nodes beside the {count} of the fleet {request.name}; it is as it was",
        detail="\n".join(f"{each.place}: {each.reason}" for each in tried),
        hint="try later, or bring up a second fleet elsewhere: a cluster that is up is not moved",
        code="ORCH325",
    )
