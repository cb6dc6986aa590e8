"""Which nodes of a fleet a task gets: pure functions. What is free in truth, claims decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.catalog.devices import model_of, nominal_mib
from orch.catalog.records import gpu_key
from orch.runner.errors import NodeCordoned, NoFit
from orch.runner.launch.block_resources import BlockResources, share_of
from orch.runner.node.first_boot import unfit
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.spec.models import Task
    from orch.spec.models.resources import Range


@dataclass(frozen=True)
class Seat:
    """A node as one rank gets it: how many of its blocks, and what those hold."""

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
    """What is known of a node now: blocks in use, whether it can run anything, and is prepared for it, why it
    gets no jobs."""

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


def place(
    task: Task, fleet: FleetState, standing: Mapping[str, NodeAvailability] | None = None
) -> tuple[Seat, ...]:
    """Nodes in rank order, neighbours together: by rack, by the topology, by number.

    Cordoned nodes are left out, and those whose preparation failed. Nodes without enough free blocks, and
    those that do not answer, are taken only when no others are left. A job that needs part of a node goes
    where the least is free, so that whole nodes stay for those that need them.

    Raises NoFit when the fleet is too small, NodeUnfit or NodeCordoned when it is so without such nodes.
    """
    reason = misfit(task, fleet)
    if reason is not None:
        raise no_fit(task, {fleet.name: reason})
    now = standing or {}
    fitting = [node for node in fleet.nodes if _node_misfit(task, node) is None]
    fit = [node for node in fitting if now.get(node.name, IDLE).unfit is None]
    if len(fit) < task.nodes:
        first = next(node.name for node in fitting if node not in fit)
        raise unfit(first, now[first].unfit or "")
    open_ = [node for node in fit if now.get(node.name, IDLE).cordon is None]
    if len(open_) < task.nodes:
        raise NodeCordoned(
            cordoned(fleet, now) or "",
            where=f"fleet {fleet.name}",
            detail=f"{len(open_)} other nodes fit this task, it needs {task.nodes}",
            hint="let a node take jobs again with `orch cordon --undo NODE`",
        )

    def order(node: NodeState) -> tuple[object, ...]:
        here = now.get(node.name, IDLE)
        free = node.blocks - here.busy
        tight = free if task.nodes == 1 else 0
        return (not here.usable, free < _blocks(task, node), tight, *_neighbours(node))

    chosen = sorted(sorted(open_, key=order)[: task.nodes], key=_neighbours)
    return tuple(Seat(node, _blocks(task, node)) for node in chosen)


def cordoned(fleet: FleetState, standing: Mapping[str, NodeAvailability]) -> str | None:
    """What to say of a fleet's cordoned nodes; None when there are none."""
    return _told(fleet, "cordoned", {name: each.cordon for name, each in standing.items()})


def kept_out(fleet: FleetState, standing: Mapping[str, NodeAvailability]) -> str | None:
    """What to say of nodes whose preparation failed; None when there are none."""
    return _told(fleet, "kept out", {name: each.unfit for name, each in standing.items()})


def _told(fleet: FleetState, word: str, reasons: Mapping[str, str | None]) -> str | None:
    told = [f"{node.name} ({why})" for node in fleet.nodes if (why := reasons.get(node.name)) is not None]
    are = "nodes are" if len(told) > 1 else "node is"
    return f"{len(told)} {are} {word}: {', '.join(told)}" if told else None


def blocks_needed(task: Task, node: NodeState) -> int:
    """How many blocks a one-node job takes: the fewest that hold the least its `resources` ask for.

    Shared memory counts: what is written there is memory of the job.
    """
    if node.blocks <= 1:
        return node.blocks
    wanted, have = _minimums(task), _capacity(node)
    shm = task.resources.shm_size_mib
    if shm is not None:
        wanted["MiB of memory"] = max(wanted.get("MiB of memory", 0), shm)
    share = max(
        (math.ceil(wanted[what] * node.blocks / have[what]) for what in wanted if have.get(what)), default=1
    )
    return min(node.blocks, max(1, share))


def _blocks(task: Task, node: NodeState) -> int:
    return node.blocks if task.nodes > 1 else blocks_needed(task, node)


def _neighbours(node: NodeState) -> tuple[str, tuple[str, ...], int]:
    return node.rack or "", node.topology, node.index


def _node_misfit(task: Task, node: NodeState) -> Misfit | None:
    have = _capacity(node)
    for what, least in _minimums(task).items():
        if what in have and have[what] < least:
            path = _PATHS[what]
            return Misfit(
                f"node {node.name} has {have[what]:g} {what}, the task asks for {least:g}", path=path
            )
    if (reason := _machine_misfit(task, node)) is not None:
        return reason
    gpu = task.resources.gpu
    if node.gpus.count and gpu.vendor is not None and node.gpus.vendor not in (None, gpu.vendor):
        told = f"node {node.name} has {node.gpus.vendor} accelerators, the task asks for {gpu.vendor}"
        return Misfit(told, path="resources.gpu")
    device = node.gpus.name
    if gpu.names and device is not None and not _is_one_of(device, gpu.names):
        told = f"node {node.name} has {device} GPUs, the task asks for {' or '.join(gpu.names)}"
        return Misfit(told, path="resources.gpu")
    if gpu.memory_mib is not None and node.gpus.memory_mib is not None:
        size = nominal_mib(device, node.gpus.memory_mib)
        if size not in gpu.memory_mib:
            told = f"node {node.name} has GPUs of {size / 1024:g}GB, the task asks for other ones"
            return Misfit(told, path="resources.gpu")
    return _gpu_misfit(task, node) or _too_large(task, node) or _too_many_gpus(task, node)


def _machine_misfit(task: Task, node: NodeState) -> Misfit | None:
    """Architecture and disk, where the author wrote them: what is not known fits nobody who asks."""
    resources = task.resources
    wanted, disk = resources.cpu.arch, resources.disk_mib
    if wanted is not None and node.arch != wanted:
        if node.arch is None:
            told = f"the architecture of node {node.name} is not known, the task asks for {wanted}"
            return Misfit(told, hint="`orch up` of its fleet records it", path="resources.cpu")
        return Misfit(f"node {node.name} is {node.arch}, the task asks for {wanted}", path="resources.cpu")
    if "disk_mib" not in resources.model_fields_set:
        return None
    if node.disk_mib is None:
        told = f"the disk of node {node.name} is not known, the task asks for one of {_sizes(disk)}"
        hint = "leave `disk` out for local nodes; of all others `orch up` of their fleet records it"
        return Misfit(told, hint=hint, path="resources.disk")
    if node.disk_mib not in disk:
        told = f"node {node.name} has a disk of {node.disk_mib / 1024:g}GB, the task asks for {_sizes(disk)}"
        return Misfit(told, path="resources.disk")
    return None


def _sizes(wanted: Range) -> str:
    if wanted.min == wanted.max:
        return f"{(wanted.min or 0) / 1024:g}GB"
    low, high = ("" if end is None else f"{end / 1024:g}GB" for end in (wanted.min, wanted.max))
    return f"{low}..{high}"


def _gpu_misfit(task: Task, node: NodeState) -> Misfit | None:
    """What the node's GPUs are together, and what their model can, as far as it is known."""
    gpu, model = task.resources.gpu, model_of(node.gpus.name) if node.gpus.name is not None else None
    if gpu.total_memory_mib is not None and node.gpus.memory_mib is not None:
        total = nominal_mib(node.gpus.name, node.gpus.memory_mib) * Seat(node, _blocks(task, node)).gpus
        if total not in gpu.total_memory_mib:
            told = f"node {node.name} has {total / 1024:g}GB on all GPUs of the job"
            return Misfit(f"{told}, the task asks for another size", path="resources.gpu")
    able = model.compute_capability if model is not None else None
    if gpu.compute_capability is not None and able is not None and able not in gpu.compute_capability:
        told = f"node {node.name} has GPUs of compute capability {able:g}, the task asks for another one"
        return Misfit(told, path="resources.gpu")
    return None


def _too_large(task: Task, node: NodeState) -> Misfit | None:
    """Upper ends of CPUs and memory, against what the job gets of the node."""
    resources, share = task.resources, Seat(node, _blocks(task, node)).share
    wanted: list[tuple[str, float | None, float | None]] = [
        ("CPUs", share.cpus, resources.cpu.count.max),
        ("MiB of memory", share.memory_mib, resources.memory_mib.max),
    ]
    for what, found, most in wanted:
        if found is not None and most is not None and found > most:
            told = f"a job gets {found:g} {what} of node {node.name}, the task asks for {most:g} at most"
            return Misfit(told, path=_PATHS[what])
    return None


def _is_one_of(device: str, names: tuple[str, ...]) -> bool:
    """Whether the device, as its driver calls it, is of a model that the task names."""
    model = model_of(device)
    keys = model.keys if model is not None else {gpu_key(device)}
    return any(gpu_key(name) in keys for name in names)


def _too_many_gpus(task: Task, node: NodeState) -> Misfit | None:
    """A job takes whole blocks, a distributed one whole nodes: a count below that matches nothing."""
    most, seat = task.resources.gpu.count.max, Seat(node, _blocks(task, node))
    if not most or seat.gpus <= most:
        return None
    most, all_gpus = int(most), node.gpus.count
    asks = f"{most} GPU{'s' if most > 1 else ''}"
    if task.nodes > 1 and node.blocks > 1:
        return Misfit(
            f"a distributed task takes whole instances (all {node.blocks} blocks), but asks for {asks}",
            "ORCH242",
            f"ask for `gpu: {all_gpus}`",
            "resources.gpu",
        )
    if node.blocks > 1:
        told = f"{seat.blocks} block{'s' if seat.blocks > 1 else ''} of {seat.gpus} GPUs"
        return Misfit(
            f"no instance fits: a job takes at least {told}, but asks for {asks}",
            "ORCH243",
            f"set `blocks: {all_gpus}` on the fleet, or ask for `gpu: {most}..{seat.gpus}`",
            "resources.gpu",
        )
    return Misfit(
        f"no instance fits: a job takes the whole instance of {all_gpus} GPUs, but asks for {asks}",
        "ORCH243",
        f"ask for `gpu: {all_gpus}`"
        if task.nodes > 1
        else f"set `blocks: {all_gpus}` on the fleet, or ask for `gpu: {most}..{all_gpus}`",
        "resources.gpu",
    )


_PATHS = {"GPUs": "resources.gpu", "CPUs": "resources.cpu", "MiB of memory": "resources.memory"}


def _capacity(node: NodeState) -> dict[str, float]:
    have: dict[str, float] = {"GPUs": node.gpus.count}
    if node.cpus is not None:
        have["CPUs"] = node.cpus
    if node.memory_mib is not None:
        have["MiB of memory"] = node.memory_mib
    return have


def _minimums(task: Task) -> dict[str, float]:
    """What the author wrote: the language's default minimums exclude no existing node."""
    resources = task.resources
    written = resources.model_fields_set
    wanted: dict[str, float] = {}
    if "gpu" in written and resources.gpu.count.min:
        wanted["GPUs"] = resources.gpu.count.min
    if "cpu" in written and resources.cpu.count.min:
        wanted["CPUs"] = resources.cpu.count.min
    if "memory_mib" in written and resources.memory_mib.min:
        wanted["MiB of memory"] = resources.memory_mib.min
    return wanted


def no_fit(task: Task, reasons: Mapping[str, Misfit]) -> NoFit:
    """One reason with a code is told as itself, anything else fleet by fleet."""
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
