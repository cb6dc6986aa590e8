"""The plan of an evacuation: the nodes of a fleet that leave a zone, and what moves with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orch.components.file_systems import ZONAL, words_of
from orch.components.node_count import RESERVATION
from orch.components.registry.backends import require_backend
from orch.components.registry.planning import compile_fleet, moves_singly
from orch.components.request import PlanRequest
from orch.spec.findings import PlanError
from orch.spec.grammar.values import shown
from orch.spec.models import Fleet
from orch.spec.models.backends import made_with_runs, title
from orch.spec.state import OF_THE_USER, FleetState
from orch.spec.suggest import few, hint_for
from orch.stacks.maintenance.errors import CannotReplace
from orch.stacks.maintenance.plan import MaintenancePlan, Options
from orch.stacks.maintenance.replace import refuse_gaps
from orch.stacks.maintenance.serial import Share
from orch.stacks.plans.request import FleetRequest, content_of, not_brought_up, plan_request, request_of
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.record.fleets import find_fleet, fleet_of
from orch.stacks.record.volumes import known_volumes
from orch.stacks.stack.state import StackState

AVOID = "keep new nodes out of"
"""The step that records the zone, which follows."""


@dataclass(frozen=True)
class Evacuation:
    """Facts needed to move a fleet out of a zone.

    `zone`: as the fleet's nodes name it, `zone_names`: all its names; `names`: the nodes that move, in their
    order. `whole`: they move together, what the fleet has only once with them, and their machines go before
    there are others. `notes`: what a reader of the plan must know. `content`: of the fleet's file.
    """

    zone: str
    zone_names: tuple[str, ...]
    names: tuple[str, ...]
    whole: bool
    notes: tuple[str, ...]
    content: str = ""

    def in_waves(self, options: Options) -> Options:
        """The same options; what moves as a whole does in one wave."""
        return replace(options, serial=(Share(100, percent=True),)) if self.whole else options

    def of(self, plan: MaintenancePlan) -> MaintenancePlan:
        """The plan of its nodes with what it knows. Raises CannotReplace where a fleet moves as a whole, and
        some of its nodes are left alone."""
        if self.whole and plan.left_alone:
            raise CannotReplace(
                "a fleet that moves as a whole leaves no node alone",
                detail="\n".join(f"{each.name}: {each.why}" for each in plan.left_alone),
                hint="\n".join(dict.fromkeys(each.hint for each in plan.left_alone if each.hint)) or None,
                code="ORCH429",
            )
        return replace(
            plan,
            notes=self.notes,
            zone=self.zone,
            zone_names=self.zone_names,
            whole=self.whole,
            content=self.content,
        )


def plan_evacuation(
    project: Project, fleet: str, zone: str, listener: Listener, *, whole: bool = False
) -> Evacuation:
    """Plan the move of a fleet out of a zone. Changes nothing. `whole`: all of the fleet is to leave.

    Raises NoSuchFleet; CannotReplace where the backend has no such zone, or what the fleet has cannot leave
    it; Conflict where its file has changes that are not brought up; an error at its line where it permits no
    other zone.
    """
    fleet_of(StackState(project, fleet))
    document, _ = find_fleet(project.root, fleet)
    try:
        return _planned(project, fleet, zone, listener, whole=whole)
    except PlanError as error:
        raise error.placed(document) from error


def _planned(project: Project, fleet: str, zone: str, listener: Listener, *, whole: bool) -> Evacuation:
    stack = StackState(project, fleet)
    state, request = fleet_of(stack), as_there(stack)
    zone_names = names_of(stack, plan_request(stack, request), state.backend, zone)
    zone = zone_names[0]
    own = [node for node in state.nodes if node.zone == zone]
    _refuse_bound(stack, request.fleet, here=bool(own))
    plan = operations.preview(project, request, listener)
    if plan.pending:
        raise not_brought_up(request, plan.in_words, "no node of it is moved")
    single = moves_singly(plan_request(stack, request))
    whole = whole or not single
    leaving = state.nodes if whole and own else own
    if whole and own:
        refuse_gaps(project, fleet)
        _refuse_moving_data(stack)
    if leaving:
        listener(Activity(f"looking for places outside {zone}"))
        moved = replace(
            request,
            avoids=zone,
            moves=whole,
            leaving=frozenset() if whole else frozenset(node.index for node in leaving),
        )
        operations.preview(project, moved, listener)
    else:
        # Whether there is another zone at all.
        compile_fleet(plan_request(stack, replace(request, avoids=zone)))
    notes = _notes(stack, state, zone, moved=len(leaving), whole=whole, single=single)
    names = tuple(node.name for node in sorted(leaving, key=lambda each: each.index))
    return Evacuation(zone, zone_names, names, whole, tuple(notes), content_of(request))


def as_there(stack: StackState) -> FleetRequest:
    """The fleet as its file has it, with as many nodes as there are."""
    return request_of(stack.project, stack.name, count=len(stack.nodes))


def names_of(stack: StackState, request: PlanRequest, backend: str, written: str) -> tuple[str, ...]:
    """Return all names of a zone, the one that nodes have first. Raises CannotReplace for a backend without
    zones and for an unknown zone."""
    fleet, nodes = stack.name, fleet_of(stack).nodes
    if made_with_runs([backend]):
        raise CannotReplace(
            f"nodes of the fleet {fleet} are made for runs, each where there is room: none is moved",
            hint="write `availability_zones` without that one in its file, and stop the runs there: their "
            "next attempts go elsewhere",
            code="ORCH428",
        )
    regions = dict.fromkeys(node.region for node in nodes if node.region)
    pins = stack.outputs.get("pins") or {}
    region = next(iter(regions), str(pins.get("region", "")))
    zones = require_backend(backend).zone_names(request, region)
    if zones is None:
        raise CannotReplace(
            f"the fleet {fleet} is on {title(backend)}, where nodes have no zones",
            hint="`orch node drain` empties hosts"
            if backend in OF_THE_USER
            else "write other `regions` in its file: `orch up` moves the fleet",
            code="ORCH428",
        )
    found = zones.get(written.lower())
    if found is None:
        places = sorted({node.zone for node in nodes if node.zone})
        raise CannotReplace(
            f"there is no zone {shown(written)} where the fleet {fleet} is",
            detail=f"nodes are in {', '.join(places) or 'no zone'}; {region} has {few(sorted(zones), 24)}",
            hint=hint_for(written, sorted(zones)) or "name a zone of the fleet's region",
            code="ORCH428",
        )
    return tuple(dict.fromkeys([found, *(name for name, each in zones.items() if each == found)]))


def _refuse_bound(stack: StackState, fleet: Fleet, *, here: bool) -> None:
    """Raises CannotReplace for what a fleet has that is in one zone and stays there. `here`: it has nodes in
    the zone that it is to leave."""
    if not here:
        return
    pins = stack.outputs.get("pins") or {}
    if reservation := fleet.reservation or pins.get(RESERVATION):
        raise CannotReplace(
            f"the fleet {stack.name} is made from the reservation {reservation}, which is in one zone",
            hint="name a reservation of another zone in its file, or none, and `orch up` it",
            code="ORCH429",
        )
    if kept := [each for each in stack.file_systems if each.type in ZONAL]:
        raise CannotReplace(
            f"file systems of the fleet {stack.name} are in one zone, with their data",
            detail="\n".join(map(words_of, kept)),
            hint="copy the data to a file system that another fleet makes, and `orch down` this one",
            code="ORCH429",
        )


def _refuse_moving_data(stack: StackState) -> None:
    """Raises CannotReplace where all of a fleet would go, with file systems that are its own."""
    if kept := stack.file_systems:
        raise CannotReplace(
            f"the fleet {stack.name} moves as a whole, and its file systems hold data",
            detail="\n".join(map(words_of, kept)),
            hint=f"copy the data, then `orch down {stack.name}` and `orch up` its file with another zone",
            code="ORCH429",
        )


def _notes(
    stack: StackState, state: FleetState, zone: str, *, moved: int, whole: bool, single: bool
) -> Iterator[str]:
    yield f"no new node of {stack.name} goes to {zone} from then on; `--undo` takes that back"
    pins = stack.outputs.get("pins") or {}
    if moved and whole:
        why = "a cluster is in one zone" if state.placement == "cluster" else "no node of it moves alone"
        why = "" if single else f": {why}"
        yield f"it moves as a whole, all nodes or none{why}; its network goes with it"
        if require_backend(state.backend).tells_room and not any(node.spot for node in state.nodes):
            yield "its machines go before there are others, once room for all was reserved for a moment"
        else:
            yield "its machines go before there are others, and nobody tells before whether there is room"
    elif moved:
        yield "each new machine is made before the old one goes; a wave that finds no room changes nothing"
        if pins.get("zone") == zone:
            yield f"what the fleet has once (way in, way out) stays in {zone}; `--whole` moves it too"
    for volume in known_volumes(stack.project).values():
        if (volume.backend, volume.zone) == (state.backend, zone):
            yield f"the volume {volume.name} stays in {zone}: runs that mount it find no node there"
