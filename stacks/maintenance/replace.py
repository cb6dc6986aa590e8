"""Replaces nodes: their machines are removed and made anew, under the same names and indices."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orch.components.node_count import is_range
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.stacks.events.notation import fold
from orch.stacks.maintenance.context import Failures, Maintenance, raise_if_over
from orch.stacks.maintenance.drain import put_mark
from orch.stacks.maintenance.errors import CannotReplace, MaintenanceError
from orch.stacks.maintenance.look import machines_of
from orch.stacks.maintenance.plan import LIMIT_S, NodeLook
from orch.stacks.maintenance.reboot import READY, wait_ready
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import FleetRequest, not_brought_up, request_of
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.pulumi.progress import Listener
from orch.stacks.record.fleets import find_fleet
from orch.stacks.runs.nodes_for_runs import other_changes
from orch.stacks.stack.state import StackState

REPLACED = "replaced"


def refuse_irreplaceable(project: Project, looks: Sequence[NodeLook], listener: Listener) -> None:
    """Raises CannotReplace for nodes that are not made one by one, and Conflict where the file of their fleet
    would change more than these nodes."""
    for each in looks:
        if each.backend == "ssh":
            raise CannotReplace(
                f"node {each.name} is an existing host: orch did not make it, and cannot make another",
                hint=f"`orch node drain {each.name}`, put the other host in its place, then `orch up` the "
                "file with its name",
                code="ORCH404",
            )
        if each.made_for is not None:
            raise CannotReplace(
                f"node {each.name} was made for one run, and goes with it",
                hint="stop the run: its next attempt gets nodes of its own",
                code="ORCH404",
            )
        if each.made_by is not None:
            raise CannotReplace(
                f"node {each.name} of the fleet {each.fleet} cannot be replaced individually",
                detail=f"made together with others by {each.made_by}",
                hint=f"`orch down {each.fleet}` and `orch up` make all of them anew",
                code="ORCH355",
            )
    for fleet in dict.fromkeys(each.fleet for each in looks):
        refuse_gaps(project, fleet)
        names = [each.name for each in looks if each.fleet == fleet]
        _planned(project, fleet, names, len(StackState(project, fleet).nodes), listener)


def refuse_gaps(project: Project, fleet: str) -> None:
    """A new node of a fleet whose number of nodes may change gets the lowest free index: with gaps below a
    node's, that would be another one."""
    _, written = find_fleet(project.root, fleet)
    indices = sorted(int(node["index"]) for node in StackState(project, fleet).nodes)
    if is_range(written.nodes) and indices != list(range(len(indices))):
        raise CannotReplace(
            f"nodes of the fleet {fleet} cannot be replaced under their names: lower ones are free",
            detail=f"its nodes are {', '.join(map(str, indices))}",
            hint=f"`orch down {fleet} -i INDEX` removes a node, and runs or `orch up` make others",
            code="ORCH404",
        )


def replace(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Remove the machines of nodes and make them anew; who has one that is not the plan's has its new one."""
    for fleet, here in at.by_fleet(names).items():
        count = max(each.fleet_size for each in at.plan.nodes if each.fleet == fleet)
        try:
            at.journal.step("", f"remove {fold(here)}", lambda f=fleet, h=here: _remove(at, f, h))
            at.journal.step("", f"make {fold(here)}", lambda f=fleet, h=here, c=count: _make(at, f, h, c))
        except OrchError as error:
            raise_if_over(error)
            failures |= dict.fromkeys(here, error)
    at.on_each(names, REPLACED, lambda node: replaced(at, node), failures)
    at.on_each(names, READY, lambda node: wait_ready(at, node, LIMIT_S["replace"]), failures)


def _remove(at: Maintenance, fleet: str, names: Sequence[str]) -> str:
    def work() -> str:
        present = machines_of(StackState(at.project, fleet))
        old = [
            each for each in at.plan.nodes if each.name in names and present.get(each.name) == each.machine
        ]
        if not old:
            return "they are gone already"
        operations.remove_nodes(at.project, fleet, [each.index for each in old], at.listener)
        return f"removed {fold(each.name for each in old)}"

    return at.when_free(fleet, work)


def _make(at: Maintenance, fleet: str, names: Sequence[str], count: int) -> str:
    def work() -> str:
        # Also where a call that was killed has made them: the fleet's record is to tell of them.
        request, plan = _planned(at.project, fleet, _may_change(at, fleet), count, at.listener)
        operations.up(at.project, request, at.listener, plan=plan)
        return f"made {fold(names)}"

    return at.when_free(fleet, work)


def _may_change(at: Maintenance, fleet: str) -> set[str]:
    """The nodes of a fleet that are replaced: by this change, and by others that are under way."""
    under_way = at.runner.ledger.changes.listed(at.project.name, verbs=("node replace",), unfinished=True)
    held = {hold for each in under_way if each.scope == at.journal.change.scope for hold in each.holds}
    return {hold.removeprefix(f"{fleet}/") for hold in held if hold.startswith(f"{fleet}/")}


def replaced(at: Maintenance, node: NodeState) -> str:
    planned = at.plan.node(node.name)
    machine = machines_of(StackState(at.project, planned.fleet)).get(node.name)
    if machine is None or machine == planned.machine or node.index != planned.index:
        raise MaintenanceError(
            f"node {node.name} was not replaced",
            detail=f"its machine is {machine or 'not there'}",
            hint=f"`orch preview` of its file tells what the fleet {planned.fleet} lacks",
            code="ORCH405",
        )
    put_mark(at, node, at.plan.reason or at.title)
    return f"{planned.machine} -> {machine}"


def _planned(
    project: Project, fleet: str, names: Collection[str], count: int, listener: Listener
) -> tuple[FleetRequest, Plan]:
    """Plan the replacement of nodes of a fleet, from its file as it is now.

    Raises Conflict if it changes more than these nodes, NoSuchFleet if no file describes the fleet."""
    request = request_of(project, fleet, count=count)
    plan = operations.preview(project, request, listener)
    if others := other_changes(plan, names, StackState(project, fleet)):
        raise not_brought_up(request, others, "no node of it is replaced", "name nodes that are to be, too")
    return request, plan
