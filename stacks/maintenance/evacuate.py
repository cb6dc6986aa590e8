"""Moves the nodes of a fleet out of a zone, and keeps new ones out of it until somebody takes it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orch.components.registry.planning import room_for
from orch.runner.ledger.changes import Change
from orch.runner.node_api.cordon import unmark_of
from orch.runner.runs.context import RunnerContext
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.stacks.errors import NoCapacity
from orch.stacks.events.notation import fold, name_of, parse_time
from orch.stacks.maintenance.context import Failures, Maintenance, mark_of, raise_if_over
from orch.stacks.maintenance.drain import CORDON, DRAIN, NODE_S
from orch.stacks.maintenance.errors import NotDrained
from orch.stacks.maintenance.evacuation import AVOID, as_there, names_of
from orch.stacks.maintenance.look import machine
from orch.stacks.maintenance.plan import LIMIT_S, MaintenancePlan, title_of
from orch.stacks.maintenance.reboot import READY, wait_ready
from orch.stacks.maintenance.replace import REPLACED, replaced
from orch.stacks.plans.request import FleetRequest, plan_request, refuse_changed, request_of
from orch.stacks.project.project import Project, ledger_scope
from orch.stacks.provisioning import operations
from orch.stacks.record.change_log import NO_CHANGES, undertaken
from orch.stacks.record.evacuated import avoid, evacuated_zones, take_back
from orch.stacks.record.fleets import fleet_of
from orch.stacks.record.node_records import NodeRecord
from orch.stacks.stack.leases import refuse_leased
from orch.stacks.stack.state import StackState

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
        zone = names_of(stack, plan_request(stack, as_there(stack)), backend, written)[0]
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
