"""Which nodes of a fleet a task gets: pure functions. Claims on the nodes decide what is really free."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.catalog.devices import model_of, nominal_mib
from orch.catalog.records import gpu_key
from orch.runner.errors import NodeCordoned, NoFit
from orch.runner.launch.block_resources import BlockResources, share_of
from orch.runner.node.first_boot import unfit_error
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.spec.models import Task
    from orch.spec.models.resources import Range


@dataclass(frozen=True)
class Seat:
    """A node as one rank gets it: the number of its blocks, and their resources."""

    node: NodeState
    blocks: int

    @property
    def share(self) -> BlockResources:
        return share_of(self.node, self.blocks)

    @property
    def gpus(self) -> int:
        return self.share.gpus


@dataclass(frozen=True)
class NodeAvailability:
    """A node at this moment: its blocks in use, whether it can run jobs, whether its first boot has finished.

    `cordon` and `unfit_error` say why it gets no jobs.
    """

    busy: int = 0
    usable: bool = True
    ready: bool = True
    cordon: str | None = None
    unfit: str | None = None


IDLE = NodeAvailability()


@dataclass(frozen=True)
class Misfit:
    """Why a task cannot run on a fleet even when all of it is idle. `path` is the task's property."""

    summary: str
    code: str | None = None
    hint: str | None = None
    path: str = "resources"


def misfit(task: Task, fleet: FleetState) -> Misfit | None:
    """Why `task` cannot run on `fleet` even when all of it is idle; None when it can."""
    if task.nodes > 1 and fleet.placement != "cluster":
        return Misfit(
            "distributed tasks need a fleet with `placement: cluster`",
            "ORCH241",
            f"add `placement: cluster` to {fleet.name}",
            "nodes",
        )
    if len(fleet.nodes) < task.nodes:
        return Misfit(
            f"it has {counted(len(fleet.nodes), 'node')}, the task needs {task.nodes}", path="nodes"
        )
    reasons = [reason for node in fleet.nodes if (reason := _node_misfit(task, node)) is not None]
    if len(fleet.nodes) - len(reasons) < task.nodes:
        return reasons[0]
    return None


def place_task(
    task: Task, fleet: FleetState, availability: Mapping[str, NodeAvailability] | None = None
) -> tuple[Seat, ...]:
    """Nodes in rank order, neighbours together: by rack, by the topology, by number.

    Cordoned nodes and nodes whose preparation failed are excluded. Nodes without enough free blocks, and
    nodes that do not answer, are used only when no others are left. A job that needs part of a node goes
    to the node with the fewest free blocks, so that whole nodes stay free for jobs that need them.

    Raises NoFit when the fleet is too small; NodeUnfit or NodeCordoned when too few nodes remain.
    """
    reason = misfit(task, fleet)
    if reason is not None:
        raise no_fit(task, {fleet.name: reason})
    availability = availability or {}
    fitting = [node for node in fleet.nodes if _node_misfit(task, node) is None]
    prepared = [node for node in fitting if availability.get(node.name, IDLE).unfit is None]
    if len(prepared) < task.nodes:
        first = next(node.name for node in fitting if node not in prepared)
        raise unfit_error(first, availability[first].unfit or "")
    schedulable = [node for node in prepared if availability.get(node.name, IDLE).cordon is None]
    if len(schedulable) < task.nodes:
        raise NodeCordoned(
            cordoned_message(fleet, availability) or "",
            where=f"fleet {fleet.name}",
            detail=f"{len(schedulable)} other nodes fit this task, it needs {task.nodes}",
            hint="let a node take jobs again with `orch cordon --undo NODE`",
        )

    def order(node: NodeState) -> tuple[object, ...]:
        available = availability.get(node.name, IDLE)
        free = node.blocks - available.busy
        tight = free if task.nodes == 1 else 0
        return (not available.usable, free < _blocks(task, node), tight, *_neighbours(node))

    nodes = sorted(sorted(schedulable, key=order)[: task.nodes], key=_neighbours)
    return tuple(Seat(node, _blocks(task, node)) for node in nodes)


def cordoned_message(fleet: FleetState, availability: Mapping[str, NodeAvailability]) -> str | None:
    """The message about a fleet's cordoned nodes; None when there are none."""
    return _nodes_message(fleet, "cordoned", {name: each.cordon for name, each in availability.items()})


def unfit_message(fleet: FleetState, availability: Mapping[str, NodeAvailability]) -> str | None:
    """The message about nodes whose preparation failed; None when there are none."""
    return _nodes_message(fleet, "kept out", {name: each.unfit for name, each in availability.items()})


def _nodes_message(fleet: FleetState, word: str, reasons: Mapping[str, str | None]) -> str | None:
    descriptions = [
        f"{node.name} ({why})" for node in fleet.nodes if (why := reasons.get(node.name)) is not None
    ]
    verb = "nodes are" if len(descriptions) > 1 else "node is"
    return f"{len(descriptions)} {verb} {word}: {', '.join(descriptions)}" if descriptions else None


def blocks_needed(task: Task, node: NodeState) -> int:
    """How many blocks a one-node job takes: the fewest with the minimums of its `resources`.

    Shared memory counts as memory of the job.
    """
    if node.blocks <= 1:
        return node.blocks
    minimums, capacity = _minimums(task), _capacity(node)
    shm = task.resources.shm_size_mib
    if shm is not None:
        minimums["MiB of memory"] = max(minimums.get("MiB of memory", 0), shm)
    share = max(
        (
            math.ceil(minimums[resource] * node.blocks / capacity[resource])
            for resource in minimums
            if capacity.get(resource)
        ),
        default=1,
    )
    return min(node.blocks, max(1, share))


def _blocks(task: Task, node: NodeState) -> int:
    return node.blocks if task.nodes > 1 else blocks_needed(task, node)


def _neighbours(node: NodeState) -> tuple[str, tuple[str, ...], int]:
    return node.rack or "", node.topology, node.index


def _node_misfit(task: Task, node: NodeState) -> Misfit | None:
    capacity = _capacity(node)
    for resource, minimum in _minimums(task).items():
        if resource in capacity and capacity[resource] < minimum:
            path = _PATHS[resource]
            return Misfit(
                f"node {node.name} has {capacity[resource]:g} {resource}, the task asks for {minimum:g}",
                path=path,
            )
    if (reason := _machine_misfit(task, node)) is not None:
        return reason
    gpu = task.resources.gpu
    if node.gpus.count and gpu.vendor is not None and node.gpus.vendor not in (None, gpu.vendor):
        summary = f"node {node.name} has {node.gpus.vendor} accelerators, the task asks for {gpu.vendor}"
        return Misfit(summary, path="resources.gpu")
    device = node.gpus.name
    if gpu.names and device is not None and not _is_one_of(device, gpu.names):
        summary = f"node {node.name} has {device} GPUs, the task asks for {' or '.join(gpu.names)}"
        return Misfit(summary, path="resources.gpu")
    if gpu.memory_mib is not None and node.gpus.memory_mib is not None:
        size = nominal_mib(device, node.gpus.memory_mib)
        if size not in gpu.memory_mib:
            summary = f"node {node.name} has GPUs of {size / 1024:g}GB, the task asks for other ones"
            return Misfit(summary, path="resources.gpu")
    return _gpu_misfit(task, node) or _gpu_count_misfit(task, node)


def _machine_misfit(task: Task, node: NodeState) -> Misfit | None:
    """Architecture and disk, where the task sets them; an unknown value does not fit."""
    resources = task.resources
    arch, disk = resources.cpu.arch, resources.disk_mib
    if arch is not None and node.arch != arch:
        if node.arch is None:
            summary = f"the architecture of node {node.name} is not known, the task asks for {arch}"
            return Misfit(summary, hint="`orch up` of its fleet records it", path="resources.cpu")
        return Misfit(f"node {node.name} is {node.arch}, the task asks for {arch}", path="resources.cpu")
    if "disk_mib" not in resources.model_fields_set:
        return None
    if node.disk_mib is None:
        summary = f"the disk of node {node.name} is not known, the task asks for one of {_sizes(disk)}"
        hint = "leave `disk` out for local nodes; of all others `orch up` of their fleet records it"
        return Misfit(summary, hint=hint, path="resources.disk")
    if node.disk_mib not in disk:
        summary = (
            f"node {node.name} has a disk of {node.disk_mib / 1024:g}GB, the task asks for {_sizes(disk)}"
        )
        return Misfit(summary, path="resources.disk")
    return None


def _sizes(sizes: Range) -> str:
    if sizes.min == sizes.max:
        return f"{(sizes.min or 0) / 1024:g}GB"
    low, high = ("" if end is None else f"{end / 1024:g}GB" for end in (sizes.min, sizes.max))
    return f"{low}..{high}"


def _gpu_misfit(task: Task, node: NodeState) -> Misfit | None:
    """Total memory and compute capability of the node's GPUs, where they are known."""
    gpu, model = task.resources.gpu, model_of(node.gpus.name) if node.gpus.name is not None else None
    if gpu.total_memory_mib is not None and node.gpus.memory_mib is not None:
        total = nominal_mib(node.gpus.name, node.gpus.memory_mib) * Seat(node, _blocks(task, node)).gpus
        if total not in gpu.total_memory_mib:
            summary = f"node {node.name} has {total / 1024:g}GB on all GPUs of the job"
            return Misfit(f"{summary}, the task asks for another size", path="resources.gpu")
    capability = model.compute_capability if model is not None else None
    if (
        gpu.compute_capability is not None
        and capability is not None
        and capability not in gpu.compute_capability
    ):
        summary = (
            f"node {node.name} has GPUs of compute capability {capability:g}, the task asks for another one"
        )
        return Misfit(summary, path="resources.gpu")
    return None


def _is_one_of(device: str, names: tuple[str, ...]) -> bool:
    """Whether a device, by its driver's name for it, is of one of the models `names`."""
    model = model_of(device)
    keys = model.keys if model is not None else {gpu_key(device)}
    return any(gpu_key(name) in keys for name in names)


def _gpu_count_misfit(task: Task, node: NodeState) -> Misfit | None:
    """A job takes whole blocks, a distributed one whole nodes: a count below that matches nothing."""
    maximum, seat = task.resources.gpu.count.max, Seat(node, _blocks(task, node))
    if not maximum or seat.gpus <= maximum:
        return None
    maximum, all_gpus = int(maximum), node.gpus.count
    requested = f"{maximum} GPU{'s' if maximum > 1 else ''}"
    if task.nodes > 1 and node.blocks > 1:
        return Misfit(
            f"a distributed task takes whole instances (all {node.blocks} blocks), but asks for {requested}",
            "ORCH242",
            f"ask for `gpu: {all_gpus}`",
            "resources.gpu",
        )
    if node.blocks > 1:
        least = f"{seat.blocks} block{'s' if seat.blocks > 1 else ''} of {seat.gpus} GPUs"
        return Misfit(
            f"no instance fits: a job takes at least {least}, but asks for {requested}",
            "ORCH243",
            f"set `blocks: {all_gpus}` on the fleet, or ask for `gpu: {maximum}..{seat.gpus}`",
            "resources.gpu",
        )
    return Misfit(
        f"no instance fits: a job takes the whole instance of {all_gpus} GPUs, but asks for {requested}",
        "ORCH243",
        f"ask for `gpu: {all_gpus}`"
        if task.nodes > 1
        else f"set `blocks: {all_gpus}` on the fleet, or ask for `gpu: {maximum}..{all_gpus}`",
        "resources.gpu",
    )


_PATHS = {"GPUs": "resources.gpu", "CPUs": "resources.cpu", "MiB of memory": "resources.memory"}


def _capacity(node: NodeState) -> dict[str, float]:
    capacity: dict[str, float] = {"GPUs": node.gpus.count}
    if node.cpus is not None:
        capacity["CPUs"] = node.cpus
    if node.memory_mib is not None:
        capacity["MiB of memory"] = node.memory_mib
    return capacity


def _minimums(task: Task) -> dict[str, float]:
    """The minimums that the task sets itself: the language's defaults exclude no existing node."""
    resources = task.resources
    set_fields = resources.model_fields_set
    minimums: dict[str, float] = {}
    if "gpu" in set_fields and resources.gpu.count.min:
        minimums["GPUs"] = resources.gpu.count.min
    if "cpu" in set_fields and resources.cpu.count.min:
        minimums["CPUs"] = resources.cpu.count.min
    if "memory_mib" in set_fields and resources.memory_mib.min:
        minimums["MiB of memory"] = resources.memory_mib.min
    return minimums


def no_fit(task: Task, reasons: Mapping[str, Misfit]) -> NoFit:
    """The error for a task that fits no fleet: one reason with a code as it is, several fleet by fleet."""
    first = next(iter(reasons.values()))
    if first.code is not None and {reason.code for reason in reasons.values()} == {first.code}:
        where = f"fleet {', '.join(reasons)}"
        return NoFit(
            first.summary,
            where=where,
            hint=first.hint,
            code=first.code,
            path=first.path,
            fleets=tuple(reasons),
        )
    detail = "; ".join(f"{name}: {reason.summary}" for name, reason in reasons.items())
    if len(reasons) == 1:
        return NoFit(
            f"fleet {next(iter(reasons))} does not fit this task",
            detail=first.summary,
            hint=first.hint or _hint(task, (first,)),
            path=first.path,
        )
    return NoFit(
        "no fleet fits this task", detail=detail, hint=_hint(task, reasons.values()), path=first.path
    )


def _hint(task: Task, reasons: Iterable[Misfit]) -> str:
    """What helps against these reasons: more nodes, or other ones."""
    paths = {reason.path for reason in reasons}
    if paths == {"nodes"}:
        return "provision a fleet with `placement: cluster` and enough nodes, or lower `nodes` of the task"
    (path, *more) = sorted(paths)
    fitting = "a fleet whose nodes each have what the task asks for" if task.nodes > 1 else "a fitting fleet"
    return f"provision {fitting}, or change `{'resources' if more else path}` of the task"
