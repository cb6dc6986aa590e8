"""Nodes that a run needs and no fleet has free: how many more, of which fleet, and whether they suit it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orch.components.idleness import may_end
from orch.components.node_count import is_range, recorded_minimum
from orch.components.registry.backends import require_backend
from orch.components.request import NodeVolume
from orch.images import is_ours, job_image
from orch.runner.errors import BadTask, NoFit
from orch.runner.launch.pods import check_task_for_pods
from orch.runner.launch.volumes import Volumes, needs_volumes, volumes_to_make_with
from orch.runner.placement.conditions import in_reservation
from orch.runner.placement.placement import misfit, no_fit, place_task
from orch.spec.grammar.schedule import MAX_INDEXES
from orch.spec.models.backends import title as title_of
from orch.spec.rules.unsupported import acted_on
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted, few
from orch.stacks.errors import Conflict, NoSuchFleet, StackError
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import FleetRequest, ended_nodes_if_told, over_since
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.provisioning.nodes_with_runs import are_made_with_runs, new_mark
from orch.stacks.provisioning.other_states import refuse_other_fleets
from orch.stacks.pulumi.progress import Listener
from orch.stacks.record.fleets import find_fleet
from orch.stacks.record.volume_attaching import usable_volumes
from orch.stacks.secrets.values import backends_with_secrets
from orch.stacks.stack.state import StackState

if TYPE_CHECKING:
    from orch.components.deployment import Deployment
    from orch.spec.loader.load import Document
    from orch.spec.models import Fleet, Task


@dataclass(frozen=True)
class Growth:
    """Nodes to make for a run. `request` is the fleet's, with as many as it needs; `free`: nodes that it has
    free for the run; `anew`: names of nodes that plans make anew once they are gone.

    Nodes that are containers of the run are all made for it: `request.made_for` is their mark."""

    task: Task
    state: FleetState
    free: tuple[NodeState, ...]
    more: int
    document: Document
    request: FleetRequest
    anew: frozenset[str] = frozenset()


def growth_for(
    project: Project,
    task: Task,
    state: FleetState,
    free: Collection[str],
    *,
    gone: Collection[str] = (),
    leaving: Collection[str] = (),
) -> Growth | None:
    """The nodes that a fleet lacks for a task beside those that are free; None where its file allows no more,
    where they would not help, or where no file here describes it.

    `gone`, `leaving`: names of nodes that are lost, and that their cloud announced to take. Where plans make
    such nodes anew, it is asked for so many less; else two would be made for one."""
    if state.queue is not None:
        return None  # its pods come with the run, and wait in the cluster's own queue
    try:
        document, fleet = find_fleet(project.root, state.name)
    except NoSuchFleet:
        return None
    if fleet.nodes is None or not is_range(fleet.nodes):
        return None
    if over_since(StackState(project, state.name), fleet) is not None:
        return None
    if are_made_with_runs(state):
        return _own_growth(project, task, state, document, fleet)
    state, needed = _without_ended(project, state), task.all_nodes
    if not state.nodes and not _may_be_in(task.reservation, fleet, state.backend):
        return None
    anew = {*gone, *_made_anew(project, state, leaving)}
    count = sum(node.name not in anew for node in state.nodes)
    if needed > 1 and fleet.placement != "cluster":
        return None
    most, here = fleet.nodes.max, tuple(node for node in state.nodes if node.name in free)
    wanted = _wanted_by_array(task, state, fleet) - len(here)
    if task.array is not None and here and wanted <= 0:
        return None
    for more in range(1 if state.nodes else needed, needed + 1):
        if most is not None and count + more > most:
            return None
        if not state.nodes or misfit(task, _with(state, here, [state.nodes[0]] * more)) is None:
            document.effective()
            if task.array is not None and wanted > more:
                # The more members run at once.
                added = wanted if most is None else min(wanted, most - count)
            else:
                added = more
            # A run that does not get all of its nodes leaves none of them behind.
            whole = fleet.model_copy(update={"gang": "all-or-nothing"})
            folder, file = document.directory.absolute(), document.file.absolute()
            request = FleetRequest(
                whole, folder, file=file, at_least=count + added, reservation=task.reservation
            )
            return Growth(task, state, here, added, document, request, frozenset(anew))
    return None


def too_small(project: Project, task: Task, state: FleetState) -> NoFit | None:
    """Return the reason that a fleet cannot grow to a task's size: its file allows fewer nodes. None
    otherwise."""
    try:
        document, fleet = find_fleet(project.root, state.name)
    except NoSuchFleet:
        return None
    if fleet.nodes is None or not is_range(fleet.nodes) or fleet.nodes.max is None:
        return None
    needed, most = task.all_nodes, fleet.nodes.max
    if needed <= most:
        return None
    return NoFit(
        f"fleet {state.name} may have at most {counted(most, 'node')}, the task needs {needed}",
        hint=f"raise `nodes` of the fleet ({document.span(('nodes',))}), or lower it here",
        path="nodes",
        fleets=(state.name,),
        code="ORCH245",
    )


def _wanted_by_array(task: Task, state: FleetState, fleet: Fleet) -> int:
    """Return the number of nodes that members of an array use at once. For a fleet with shared nodes and none
    yet, that of one member: how many share a node is known when there is one."""
    if task.array is None:
        return task.all_nodes
    at_once = min(len(task.array.indexes), task.array.at_once or MAX_INDEXES)
    if not state.nodes or misfit(task, state) is not None:
        return task.all_nodes * (at_once if fleet.blocks == 1 else 1)
    seat = place_task(task, state)[0]
    return -(-at_once * task.all_nodes // max(1, seat.node.blocks // seat.blocks))


def _own_growth(
    project: Project, task: Task, state: FleetState, document: Document, fleet: Fleet
) -> Growth | None:
    """Return the growth by all nodes of a run, on a fleet whose nodes are containers of its image.

    Raises BadTask for what no such container can have, VolumeMisfit, ImageError."""
    if task.array is not None:
        raise BadTask(
            f"an array on {title_of(state.backend)} is not supported by this version",
            detail="its nodes are made for one run each, before that is submitted",
            path="array",
            hint="use a fleet whose nodes are there before their runs",
            code="ORCH118",
        )
    needed, most = task.all_nodes, fleet.nodes.max if fleet.nodes is not None else None
    if (needed > 1 and fleet.placement != "cluster") or (
        most is not None and len(state.nodes) + needed > most
    ):
        return None
    document.effective()
    request = FleetRequest(
        fleet.model_copy(update={"gang": "all-or-nothing"}),
        document.directory.absolute(),
        file=document.file.absolute(),
        more=needed,
        image=image_of_containers(task, state, project.default_image, project.images),
        made_for=new_mark(),
        volumes=_volumes_of_containers(project, task, state) if needs_volumes(task) else (),
    )
    return Growth(task, state, (), needed, document, request)


def image_of_containers(
    task: Task, state: FleetState, default: str | None, replacements: Mapping[str, str]
) -> str:
    """The image that nodes are made of for a task. Raises BadTask for what they cannot have."""
    check_task_for_pods(task)
    image = job_image(task, state, default, replacements).reference
    require_in_registry(task, state, image)
    return image


def require_in_registry(task: Task, state: FleetState, image: str) -> None:
    """Raises BadTask for an image of ours where containers are made of it by others, who cannot have it. A
    rehearsed fleet is on this machine."""
    if not is_ours(image) or (state.queue is not None and state.simulated):
        return
    cloud = title_of(state.backend)
    raise BadTask(
        f"{cloud} pulls the image of a pod from a registry: {image} is only on this machine",
        path="image",
        hint="name an image of a registry: `image: pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime`",
        code="ORCH236",
    )


def _volumes_of_containers(project: Project, task: Task, state: FleetState) -> tuple[NodeVolume, ...]:
    """Return the volumes with which nodes can be created for a task's one volume. Raises VolumeMisfit,
    StackError."""
    found = volumes_to_make_with(task, state, Volumes(usable_volumes(project)))
    path = task.volumes[0].path
    return tuple(NodeVolume(each.state.volume_id, each.state.place, path) for each in found)


def _may_be_in(reservation: str | None, fleet: Fleet, backend: str) -> bool:
    """Return True if a fleet's first nodes may come from the reservation of a run: its file names that, or
    none. Later nodes use the reservation of the first."""
    if reservation is None or fleet.reservation is not None:
        return reservation is None or in_reservation(fleet.reservation, reservation)
    return "reservation" in acted_on(backend) and fleet.spot_policy != "spot"


def still_lacking(project: Project, growth: Growth) -> Growth | None:
    """The same, without nodes that ended since."""
    free = [node.name for node in growth.free]
    return growth_for(project, growth.task, growth.state, free, gone=growth.anew)


def _made_anew(project: Project, state: FleetState, names: Collection[str]) -> Collection[str]:
    """Return the nodes that a plan replaces after their cloud has taken them: not those that count as
    terminated then."""
    pins: dict[str, str] = StackState(project, state.name).outputs.get("pins") or {}
    least = recorded_minimum(pins) if may_end(pins) else None
    ends = {node.name for node in state.nodes if least is not None and node.spot and node.index >= least}
    return set(names) - ends


def _without_ended(project: Project, state: FleetState) -> FleetState:
    """The fleet without nodes that ended themselves. Where the cloud does not answer, a plan for new nodes
    tells that."""
    ended = ended_nodes_if_told(StackState(project, state.name))
    nodes = tuple(node for node in state.nodes if node.name not in ended)
    return state.model_copy(update={"nodes": nodes}) if ended else state


def plan_growth(project: Project, growth: Growth, listener: Listener, *, asked: bool = True) -> Plan:
    """Plan the creation of the nodes. `asked`: somebody sees it, and agrees to all that it changes.

    Raises Conflict when it would remove or replace nodes, or, with nobody asked, change anything but make
    nodes; NoFit when its new nodes would not fit the run, and what `operations.preview` raises.
    """
    plan = operations.preview(project, growth.request, listener)
    refuse_other_fleets(plan.findings, asked=asked)
    name = growth.state.name
    if plan.lost_nodes:
        raise _not_brought_up(growth, f"they remove or replace {', '.join(sorted(plan.lost_nodes))}")
    if plan.pending and not asked:
        _refuse_other_changes(project, growth, listener)
    if plan.prepared is not None and (node := _new_node(plan.prepared.compiled, name)) is not None:
        reason = misfit(growth.task, _with(growth.state, growth.free, [node] * growth.more))
        if reason is not None:
            error = no_fit(growth.task, {name: reason})
            found = [error.detail] if error.detail else []
            error.detail = "\n".join([*found, f"so it is with new nodes of fleet {name}: none was made"])
            raise error
    return plan


def _refuse_other_changes(project: Project, growth: Growth, listener: Listener) -> None:
    """Raises Conflict where the fleet's file, as it is now, would change more than it would make nodes.

    The plan without more nodes tells: what it has beside nodes that are gone is of the file's edits.
    """
    without = replace(growth.request, at_least=0, more=0, image=None, made_for=None, volumes=())
    same = operations.preview(project, without, listener)
    others = other_changes(same, growth.anew, StackState(project, growth.state.name))
    if others:
        raise _not_brought_up(growth, f"they come to {few(others, 5)}, and nobody is asked about that")


def other_changes(plan: Plan, anew: Collection[str], stack: StackState) -> list[str]:
    """Return a plan's changes besides creating the nodes `anew`, as text: `update lab-keys`."""
    makers = stack.makers
    own = {word for node in anew for word in (node, makers.get(node, node))}
    return [
        f"{change.op} {change.name}"
        for change in plan.changes
        if change.op != "same"
        and not any(change.name == each or change.name.startswith(f"{each}-") for each in own)
    ]


def _not_brought_up(growth: Growth, detail: str) -> Conflict:
    name, file = growth.state.name, growth.request.file
    return Conflict(
        f"the file of fleet {name} has changes that are not brought up: no node is made for a run",
        detail=detail,
        hint=f"look at them with `orch preview {file}`, apply them with `orch up {file}`",
        code="ORCH386",
    )


def account_words(project: Project, backend: str) -> str | None:
    """Return the account and identity that create nodes on a backend, as a part of a sentence; None if the
    backend has no login. Raises OrchError if the backend cannot be asked."""
    found = require_backend(backend).account(backends_with_secrets(project, [backend]), project.session)
    if found is None:
        return None
    return f"simulated {found.words}" if project.rehearsal else found.words


def make_nodes(project: Project, growth: Growth, plan: Plan, listener: Listener) -> Plan:
    """Make the nodes: what was planned. A fleet that had none before has its record also when none came."""
    name = growth.state.name
    try:
        return operations.up(project, growth.request, listener, plan=plan)
    except StackError:
        if not growth.state.nodes and "fleet" not in StackState(project, name).outputs:
            empty = replace(
                growth.request,
                at_least=0,
                count=0,
                reservation=None,
                more=0,
                image=None,
                made_for=None,
                volumes=(),
            )
            operations.up(project, empty, listener)
        raise


def _new_node(deployment: Deployment, fleet: str) -> NodeState | None:
    if deployment.new_node is None:
        return None
    identity = {"index": 0, "name": f"{fleet}-new", "address": "", "user": "root", "host_key": ""}
    return NodeState.model_validate({**identity, **deployment.new_node})


def _with(state: FleetState, free: tuple[NodeState, ...], new: Collection[NodeState]) -> FleetState:
    """The fleet with its free nodes and new ones; what is held back is none of them."""
    named = (
        node.model_copy(update={"name": f"{state.name}-new-{position}"}) for position, node in enumerate(new)
    )
    return state.model_copy(update={"nodes": (*free, *named), "spares": None})
