"""Resources of a fleet that a survey found, as the state is to have them, and why none can be imported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orch.components.marks.marked import MarkedResource, Survey, stack_of
from orch.components.request import RecoveredFleet
from orch.spec.findings import Finding, PlanErrors
from orch.spec.suggest import counted
from orch.stacks.errors import Conflict, StackError
from orch.stacks.plans.request import FleetRequest
from orch.stacks.states.adopting import MISSING

THERE, NOTHING, AMBIGUOUS, OTHER = "ORCH430", "ORCH431", "ORCH432", "ORCH433"


def resources_of(
    survey: Survey, project: str, fleet: str, mark: str | None, scope: str
) -> tuple[MarkedResource, ...]:
    """Return the resources of a fleet in a survey, if it is clear which these are. Pure.

    `mark`: whose it is, as a person says; `scope`: of this state, whose resources need no such word. Raises
    StackError (ORCH431), Conflict (ORCH432).
    """
    own = [each for each in survey.resources if stack_of(each.mark) == fleet]
    if mark is not None:
        own = [each for each in own if each.mark == mark]
    if not own:
        raise _nothing(survey, project, fleet, mark)
    if unsure := [each for each in own if not each.sure]:
        raise _ambiguous("labels alone do not tell whose it is", unsure)
    marks = sorted({each.mark for each in own})
    if len(marks) > 1:
        raise _ambiguous("several states have made a fleet of this name", own, marks)
    if mark is None and marks[0].rpartition("/")[2] != scope:
        raise _of_another_state(fleet, own)
    if len({each.backend for each in own}) > 1:
        raise _ambiguous("it is on several backends", own)
    same = defaultdict[tuple[str, str], list[MarkedResource]](list)
    for each in own:
        same[each.type, each.name].append(each)
    if twice := [each for rows in same.values() if len(rows) > 1 for each in rows]:
        raise _ambiguous("several resources have one name", twice)
    return tuple(own)


def with_nodes(request: FleetRequest, found: RecoveredFleet) -> FleetRequest:
    """The same for the nodes that are there, however many the file asks for."""
    nodes, count = request.fleet.nodes, len(found.nodes)
    if nodes is None or (nodes.min <= count and (nodes.max is None or count <= nodes.max)):
        return replace(request, count=count)
    there = nodes.model_copy(update={"min": count, "target": count, "max": count})
    return replace(request, fleet=request.fleet.model_copy(update={"nodes": there}))


def refuse_another(
    request: FleetRequest, found: RecoveredFleet, pins: Mapping[str, str], nodes: Iterable[str]
) -> None:
    """Raises PlanErrors where the file describes another fleet than the one that is there."""
    differ = [
        f"{key} {value}" for key, value in found.pins.items() if _is_place(key) and pins.get(key) != value
    ]
    if differ:
        raise PlanErrors(
            [_not_described(request, f"the nodes are at {', '.join(differ)}, which it excludes")]
        )
    if set(nodes) != set(found.nodes):
        raise PlanErrors([_not_described(request, f"it has {counted(len(found.nodes), 'node')}")])


def _is_place(pin: str) -> bool:
    return pin in ("backend", "region", "zone", "instance_type", "spot")


def without_missing(whole: Mapping[str, Any]) -> dict[str, Any]:
    """A state without the resources that were not found."""
    deployment = whole["deployment"]
    rows = deployment.get("resources") or []
    gone = {each["urn"] for each in rows if str(each.get("id", "")).startswith(MISSING)}
    kept = [_without(each, gone) for each in rows if each["urn"] not in gone]
    return {**whole, "deployment": {**deployment, "resources": kept}}


def _without(resource: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    """A record that depends on none of these."""
    record = dict(resource)
    if "dependencies" in record:
        record["dependencies"] = [each for each in record["dependencies"] if each not in gone]
    if "propertyDependencies" in record:
        record["propertyDependencies"] = {
            key: [each for each in urns or () if each not in gone]
            for key, urns in record["propertyDependencies"].items()
        }
    return record


def _rows(resources: Iterable[MarkedResource]) -> str:
    return "\n".join(
        f"{each.kind} {each.name} ({each.id}) in {each.backend} {each.region}, mark {each.mark}".strip()
        for each in resources
    )


def _nothing(survey: Survey, project: str, fleet: str, mark: str | None) -> StackError:
    others = sorted({stack_of(each.mark) for each in survey.resources})
    parts = [f"of this project there is: {', '.join(others)}"] if others else []
    parts += [f"of other projects: {counted(survey.foreign, 'resource')}"] if survey.foreign else []
    return StackError(
        f"nothing in the cloud bears the mark {mark or f'{project}/{fleet}/…'}",
        detail="; ".join(parts) or None,
        hint="marks have the project's name: set `project` in orch.yml as it was; and see whether `backends` "
        "and `regions` lead to the account and the regions where it is",
        code=NOTHING,
    )


def _ambiguous(why: str, resources: Iterable[MarkedResource], marks: Sequence[str] = ()) -> Conflict:
    return Conflict(
        f"it is not clear what belongs to the fleet: {why}",
        detail=_rows(resources),
        hint=f"name whose it is: `--stack {marks[0]}`" + "".join(f", or {each}" for each in marks[1:])
        if marks
        else "look which is the fleet's, and remove the other, or its tags, with the cloud's own tools",
        code=AMBIGUOUS,
    )


def _of_another_state(name: str, resources: Sequence[MarkedResource]) -> Conflict:
    return Conflict(
        f"what is there of the fleet {name} was made from another folder, machine or state",
        detail=_rows(resources),
        hint="somebody may still have that state: ask, and join it by `orch init --state URL`; where it is "
        f"lost, add `--stack {resources[0].mark}`",
        code=AMBIGUOUS,
    )


def surplus_error(request: FleetRequest, resources: Sequence[MarkedResource]) -> Conflict:
    return Conflict(
        f"the file describes less than what is there of the fleet {request.name}",
        where=str(request.file) if request.file else None,
        detail=_rows(resources),
        hint="use the file as it was when the fleet was last brought up, from Git; edit it afterwards",
        code=OTHER,
    )


def _not_described(request: FleetRequest, why: str) -> Finding:
    return Finding(
        OTHER,
        "name",
        f"the file does not describe the fleet {request.name} that is there: {why}",
        hint="use the file as it was when the fleet was last brought up, from Git; edit it afterwards",
    )


def not_rebuilt(what: str) -> Finding:
    return Finding(
        OTHER,
        "name",
        f"orch does not rebuild the state of {what}",
        hint="restore a copy of the state; `orch gc` lists what is there and, with `--stack`, deletes it",
    )
