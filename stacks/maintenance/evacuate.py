"""Moves the nodes of a fleet out of a zone, and keeps new ones out of it until somebody takes it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orch.components.file_systems import ZONAL, words_of
from orch.components.node_count import RESERVATION
from orch.components.registry.backends import require_backend
from orch.components.registry.planning import compile_fleet, moves_singly, room_for
from orch.components.request import PlanRequest
from orch.runner.ledger.changes import Change
from orch.runner.node_api.cordon import unmark_of
from orch.runner.runs.context import RunnerContext
from orch.spec.errors import OrchError
from orch.spec.findings import PlanError
from orch.spec.grammar.values import shown
from orch.spec.models import Fleet
from orch.spec.models.backends import made_with_runs, title
from orch.spec.state import OF_THE_USER, FleetState, NodeState
from orch.spec.suggest import few, hint_for
from orch.stacks.errors import NoCapacity
from orch.stacks.events.notation import fold, name_of, parse_time
from orch.stacks.maintenance.context import Failures, Maintenance, mark_of, raise_if_over
from orch.stacks.maintenance.drain import CORDON, DRAIN, NODE_S
from orch.stacks.maintenance.errors import CannotReplace, NotDrained
from orch.stacks.maintenance.look import machine
from orch.stacks.maintenance.plan import LIMIT_S, MaintenancePlan, Options, title_of
from orch.stacks.maintenance.reboot import READY, wait_ready
from orch.stacks.maintenance.replace import REPLACED, refuse_gaps, replaced
from orch.stacks.maintenance.serial import Share
from orch.stacks.plans.request import (
    FleetRequest,
    content_of,
    not_brought_up,
    plan_request,
    refuse_changed,
    request_of,
)
from orch.stacks.project.project import Project, ledger_scope
from orch.stacks.provisioning import operations
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.record.change_log import NO_CHANGES, undertaken
from orch.stacks.record.evacuated import avoid, evacuated_zones, take_back
from orch.stacks.record.fleets import find_fleet, fleet_of
from orch.stacks.record.node_records import NodeRecord
from orch.stacks.record.volumes import known_volumes
from orch.stacks.stack.leases import refuse_leased
from orch.stacks.stack.state import StackState

AVOID = "keep new nodes out of"
"""The step that records the zone, which follows."""


@dataclass(frozen=True)
class Evacuation:
    """What it takes to move a fleet out of a zone.

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
    """What moving a fleet out of a zone comes to. Changes nothing. `whole`: all of the fleet is to leave.

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
    state, request = fleet_of(stack), _as_there(stack)
    zone_names = _names_of(stack, plan_request(stack, request), state.backend, zone)
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


def _as_there(stack: StackState) -> FleetRequest:
    """The fleet as its file has it, with as many nodes as there are."""
    return request_of(stack.project, stack.name, count=len(stack.nodes))


def _names_of(stack: StackState, request: PlanRequest, backend: str, written: str) -> tuple[str, ...]:
    """All names of a zone, that which nodes have first. Raises CannotReplace for a backend without zones, and
    an unknown one."""
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


# The record of the zone


def keep_out(project: Project, fleet: str, zone: str) -> None:
    """Keep new nodes of a fleet out of a zone where it has none. Raises Conflict, StackError."""
    stack = StackState(project, fleet)
    refuse_leased(stack)
    with undertaken(project, title_of("evacuate"), f"fleet {fleet} from {zone}") as journal:
        avoid(stack, zone)
        journal.result = f"no new node goes to {zone}"


def let_back(project: Project, fleet: str, written: str) -> str | None:
    """Let new nodes go to a zone again, by any of its names; its name, None where they may already.

    Raises CannotReplace, Conflict, StackError."""
    stack = StackState(project, fleet)
    refuse_leased(stack)
    zone = written
    if zone not in evacuated_zones(stack):
        backend = fleet_of(stack).backend
        zone = _names_of(stack, plan_request(stack, _as_there(stack)), backend, written)[0]
    with undertaken(project, f"{title_of('evacuate')} --undo", f"fleet {fleet} from {zone}") as journal:
        taken = take_back(stack, zone)
        journal.result = f"new nodes may go to {zone} again" if taken else NO_CHANGES
    return zone if taken else None


def give_up(
    project: Project, runner: RunnerContext, fleet: str, written: str
) -> Iterator[tuple[Change, str, tuple[str, ...], tuple[str, ...]]]:
    """Give up evacuations of a zone that were interrupted; each with the zone as nodes name it, the nodes
    that may take jobs again, and those that do not answer, whose cordons stay."""
    changes = runner.ledger.changes
    for each in changes.listed(project.name, verbs=(title_of("evacuate"),), unfinished=True):
        plan = MaintenancePlan.parse(each.plan) if each.holds else None
        if plan is None or each.held or each.scope != ledger_scope(project):
            continue
        if not plan.leaves(fleet, written):
            continue
        stack = StackState(project, fleet)
        machines = project.machines(fleet_of(stack)) if "fleet" in stack.outputs else ()
        nodes = [node for node in machines if node.name in plan.names]
        results = unmark_of(nodes, runner.connector, mark_of(each.id, project.name), deadline_s=NODE_S)
        back = [result.node.name for result in results if result.error is None and not result.value]
        silent = [result.node.name for result in results if result.error is not None]
        # At last: until then a call that was killed is gone on with by the same one.
        changes.abandon(each.id)
        yield each, plan.zone, tuple(back), tuple(silent)


# Carrying it out


def record(at: Maintenance) -> None:
    """Keep new nodes out of the zone, before the first one leaves it."""
    (fleet,), zone = at.plan.fleets, at.plan.zone

    def do() -> str:
        stack = StackState(at.project, fleet)
        if at.plan.whole:
            _require_room(at, fleet)
        at.when_free(fleet, lambda: avoid(stack, zone))
        return f"no new node goes to {zone}"

    at.journal.step("", f"{AVOID} {zone}", do)


def move(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Make the machines of nodes outside the zone; who has one that is not the plan's has its new one.

    Where there is no room the nodes stay as they were, and take jobs again.
    """
    if at.plan.whole and (left := [each.name for each in at.plan.nodes if each.name not in names]):
        error = NotDrained(
            f"{fold(left)}: not ready to go, and the fleet moves as a whole: nothing is moved",
            hint="the same command goes on when they are",
            code="ORCH401",
        )
        failures |= dict.fromkeys(names, error)
        return
    for fleet, here in at.by_fleet(names).items():
        try:
            at.journal.step("", f"move {fold(here)}", lambda f=fleet, h=here: _move(at, f, h))
        except OrchError as error:
            raise_if_over(error)
            failures |= dict.fromkeys(here, error)
            _stay(at, fleet, here)
    at.on_each(names, REPLACED, lambda node: replaced(at, node), failures)
    at.on_each(names, READY, lambda node: wait_ready(at, node, LIMIT_S["evacuate"]), failures)


def _move(at: Maintenance, fleet: str, names: Sequence[str]) -> str:
    def work() -> str:
        old = _old(at, fleet, names)
        request = _as_written(at, fleet)
        refuse_changed(request, at.plan.content, "no node of it is moved")
        if at.plan.whole:
            if len(old) == len(names):
                _require_room(at, fleet)
            request = replace(request, moves=True)
        else:
            request = replace(request, leaving=frozenset(at.plan.node(name).index for name in old))
        operations.up(at.project, request, at.listener)
        return f"made {fold(names)} outside {at.plan.zone}"

    return at.when_free(fleet, work)


def _require_room(at: Maintenance, fleet: str) -> None:
    """Raises NoCapacity where no other zone has room for all nodes, as far as the backend tells: what goes
    before there is another one may not come again."""
    stack = StackState(at.project, fleet)
    backend = at.plan.nodes[0].backend
    request = replace(_as_written(at, fleet), avoids=at.plan.zone, moves=True)
    asked = plan_request(stack, request)
    scope = (stack.outputs.get("pins") or {}).get("scope", asked.scope)
    count = len(at.plan.nodes)
    room = room_for(asked, backend, count, f"{at.project.name}/{fleet}/{scope}")
    if room is not None and room.place is None:
        raise NoCapacity(
            f"there is no room for the fleet {fleet} outside {at.plan.zone}; it is as it was",
            detail="\n".join(room.full),
            hint="try later, or write more `regions`, `availability_zones` or `instance_types` in its file",
            code="ORCH325",
        )
    if room is not None:
        at.tell(f"there is room for {count}: {room.place}")


def _as_written(at: Maintenance, fleet: str) -> FleetRequest:
    """The fleet as its file has it, with as many nodes as the plan found: some may be gone for now."""
    return request_of(at.project, fleet, count=max(each.fleet_size for each in at.plan.nodes))


def _old(at: Maintenance, fleet: str, names: Sequence[str]) -> list[str]:
    """The nodes that have the machine of the plan still. The resources tell: an `up` that failed has told
    nothing of the nodes."""
    present = {
        name_of(each["urn"]): NodeRecord(each["id"], parse_time(each.get("created")), spot=False)
        for each in StackState(at.project, fleet).resources
        if each.get("custom") and each.get("id") and not each.get("delete")
    }
    return [
        name for name in names if name in present and machine(present[name]) == at.plan.node(name).machine
    ]


def _stay(at: Maintenance, fleet: str, names: Sequence[str]) -> None:
    """Let nodes that found no room take jobs again: they are where they were."""
    try:
        for node in at.nodes(_old(at, fleet, names)):
            if at.journal.is_done(node.name, CORDON):
                for step in (DRAIN, CORDON):
                    if at.journal.is_done(node.name, step):
                        at.journal.undo(node.name, step, lambda node=node: _let_back(at, node))
    except OrchError as error:
        raise_if_over(error)
        at.tell(f"warning: {error.summary}")


def _let_back(at: Maintenance, node: NodeState) -> None:
    (result,) = unmark_of([node], at.connector, at.mark, deadline_s=NODE_S)
    if result.error is not None:
        raise result.error
