"""Whether a node holds a rank: what its group asks for against what the node has. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orch.catalog.devices import model_of, nominal_mib
from orch.catalog.records import gpu_key
from orch.runner.placement.block_resources import BlockResources, share_of
from orch.runner.placement.rank_groups import RankGroup
from orch.runner.placement.slots import is_slot
from orch.spec.state import NodeState

if TYPE_CHECKING:
    from orch.spec.models.resources import Range, Resources


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
class Misfit:
    """Why a task cannot run on a node, or on a fleet even when all of it is idle.

    `path` is the task's property (`groups.1.resources.gpu`), `others` are those of further reasons.
    `gap`: how far it is from fitting, from 0 to 1; 1 for what has no size. `has`: the reason in a list of
    what a node has of what is asked for, `2 of 8 GPUs`.
    """

    summary: str
    code: str | None = None
    hint: str | None = None
    path: str = "resources"
    others: tuple[str, ...] = ()
    gap: float = 1.0
    has: str = ""

    @property
    def distance(self) -> tuple[int, float]:
        """How far the task is from fitting; the least is the nearest."""
        return len(self.others), self.gap


def blocks_needed(resources: Resources, node: NodeState) -> int:
    """How many blocks a one-node job takes: the fewest with the minimums of its `resources`.

    Shared memory counts as memory of the job.
    """
    if node.blocks <= 1:
        return node.blocks
    minimums, capacity = _minimums(resources), _capacity(node)
    shm = resources.shm_size_mib
    if shm is not None:
        minimums[_MEMORY] = max(minimums.get(_MEMORY, 0), shm)
    share = max(
        (
            math.ceil(minimums[resource] * node.blocks / capacity[resource])
            for resource in minimums
            if capacity.get(resource)
        ),
        default=1,
    )
    return min(node.blocks, max(1, share))


def blocks_of_rank(group: RankGroup, node: NodeState) -> int:
    """How many blocks of `node` a rank of `group` takes: all of them in a distributed run."""
    return node.blocks if group.distributed else blocks_needed(group.resources, node)


def named(node: NodeState) -> str:
    """A node in a sentence. One that stands for a pod that a run would bring has no name of its own yet."""
    return f"a pod of fleet {node.name.rpartition('-')[0]}" if is_slot(node) else f"node {node.name}"


def node_misfits(group: RankGroup, node: NodeState) -> Iterator[Misfit]:
    """The reasons why a rank of `group` cannot run on `node`, found one after the other."""
    capacity = _capacity(node)
    for resource, minimum in _minimums(group.resources).items():
        if resource in capacity and capacity[resource] < minimum:
            has, asked, noun = f"{capacity[resource]:g}", f"{minimum:g}", resource
            if resource == _MEMORY:
                has, asked, noun = *_gigabytes(capacity[resource], minimum), "memory"
            yield Misfit(
                f"{named(node)} has {has} {noun}, {group.noun} asks for {asked}",
                path=_PATHS[resource],
                gap=1 - capacity[resource] / minimum,
                has=f"{has} of {asked} {noun}",
            )
    for check in (_machine_misfit, _device_misfit, _gpu_misfit, _gpu_count_misfit):
        if (reason := check(group, node)) is not None:
            yield reason


def in_one(reasons: Sequence[Misfit], group: RankGroup, node: NodeState) -> Misfit:
    """All reasons of one node as one: the first, with what the node has of everything that it lacks."""
    first, *others = reasons
    if not others:
        return first
    has = ", ".join(reason.has for reason in reasons)
    return replace(
        first,
        summary=f"of what {group.noun} asks for, {named(node)} has {has}",
        hint=None,
        code=None,
        others=tuple(reason.path for reason in others),
    )


def _gigabytes(has: float, asked: float) -> tuple[str, str]:
    """Two unlike sizes in MiB, with as many digits as tell them apart."""
    one, other = (f"{size / 1024:.4g}GB" for size in (has, asked))
    return (one, other) if one != other else (f"{has:g}MB", f"{asked:g}MB")


def _device_misfit(group: RankGroup, node: NodeState) -> Misfit | None:
    """Vendor, model and memory of the node's accelerators."""
    gpu = group.resources.gpu
    if node.gpus.count and gpu.vendor is not None and node.gpus.vendor not in (None, gpu.vendor):
        summary = f"{named(node)} has {node.gpus.vendor} accelerators, {group.noun} asks for {gpu.vendor}"
        return Misfit(summary, path="resources.gpu", has=f"{node.gpus.vendor} accelerators, not {gpu.vendor}")
    device = node.gpus.name
    if gpu.names and device is not None and not _is_one_of(device, gpu.names):
        summary = f"{named(node)} has {device} GPUs, {group.noun} asks for {' or '.join(gpu.names)}"
        return Misfit(summary, path="resources.gpu", has=f"{device} GPUs, not {' or '.join(gpu.names)}")
    if gpu.memory_mib is not None and node.gpus.memory_mib is not None:
        size = nominal_mib(device, node.gpus.memory_mib)
        if size not in gpu.memory_mib:
            has, asked = f"GPUs of {size / 1024:g}GB", _sizes(gpu.memory_mib)
            return Misfit(
                f"{named(node)} has {has}, {group.noun} asks for {asked}",
                path="resources.gpu",
                gap=_gap(size, gpu.memory_mib),
                has=f"{has}, not {asked}",
            )
    return None


def _gap(size: float, sizes: Range) -> float:
    """How far a size is from the nearest one of a range, as a part of the larger one."""
    bound = sizes.min if sizes.min is not None and size < sizes.min else sizes.max
    return 1 - min(size, bound or 0) / max(size, bound or 0, 1)


def _machine_misfit(group: RankGroup, node: NodeState) -> Misfit | None:
    """Architecture and disk, where the task sets them; an unknown value does not fit."""
    resources = group.resources
    arch, disk = resources.cpu.arch, resources.disk_mib
    if arch is not None and node.arch != arch:
        if node.arch is None:
            summary = f"the architecture of {named(node)} is not known, {group.noun} asks for {arch}"
            hint, has = "`orch up` of its fleet records it", f"an architecture that is not known, not {arch}"
            return Misfit(summary, hint=hint, path="resources.cpu", has=has)
        summary = f"{named(node)} is {node.arch}, {group.noun} asks for {arch}"
        return Misfit(summary, path="resources.cpu", has=f"the architecture {node.arch}, not {arch}")
    if "disk_mib" not in resources.model_fields_set:
        return None
    if node.disk_mib is None:
        summary = f"the disk of {named(node)} is not known, {group.noun} asks for one of {_sizes(disk)}"
        hint = "leave `disk` out for local nodes; of all others `orch up` of their fleet records it"
        has = f"a disk that is not known, not {_sizes(disk)}"
        return Misfit(summary, hint=hint, path="resources.disk", has=has)
    if node.disk_mib not in disk:
        has = f"a disk of {node.disk_mib / 1024:g}GB"
        return Misfit(
            f"{named(node)} has {has}, {group.noun} asks for {_sizes(disk)}",
            path="resources.disk",
            gap=_gap(node.disk_mib, disk),
            has=f"{has}, not {_sizes(disk)}",
        )
    return None


def _sizes(sizes: Range) -> str:
    if sizes.min == sizes.max:
        return f"{(sizes.min or 0) / 1024:g}GB"
    low, high = ("" if end is None else f"{end / 1024:g}GB" for end in (sizes.min, sizes.max))
    return f"{low}..{high}"


def _gpu_misfit(group: RankGroup, node: NodeState) -> Misfit | None:
    """Total memory and compute capability of the node's GPUs, where they are known."""
    gpu, model = group.resources.gpu, model_of(node.gpus.name) if node.gpus.name is not None else None
    if gpu.total_memory_mib is not None and node.gpus.memory_mib is not None:
        total = (
            nominal_mib(node.gpus.name, node.gpus.memory_mib) * Seat(node, blocks_of_rank(group, node)).gpus
        )
        if total not in gpu.total_memory_mib:
            has, asked = f"{total / 1024:g}GB on all GPUs of the job", _sizes(gpu.total_memory_mib)
            return Misfit(
                f"{named(node)} has {has}, {group.noun} asks for {asked}",
                path="resources.gpu",
                gap=_gap(total, gpu.total_memory_mib),
                has=f"{has}, not {asked}",
            )
    capability = model.compute_capability if model is not None else None
    if (
        gpu.compute_capability is not None
        and capability is not None
        and capability not in gpu.compute_capability
    ):
        has = f"GPUs of compute capability {capability:g}"
        return Misfit(
            f"{named(node)} has {has}, {group.noun} asks for another one",
            path="resources.gpu",
            has=f"{has}, not the one asked for",
        )
    return None


def _is_one_of(device: str, names: tuple[str, ...]) -> bool:
    """Whether a device, by its driver's name for it, is of one of the models `names`."""
    model = model_of(device)
    keys = model.keys if model is not None else {gpu_key(device)}
    return any(gpu_key(name) in keys for name in names)


def _gpu_count_misfit(group: RankGroup, node: NodeState) -> Misfit | None:
    """A job takes whole blocks, a distributed one whole nodes: a count below that matches nothing."""
    maximum, seat = group.resources.gpu.count.max, Seat(node, blocks_of_rank(group, node))
    if not maximum or seat.gpus <= maximum:
        return None
    maximum, all_gpus = int(maximum), node.gpus.count
    requested = f"{maximum} GPU{'s' if maximum > 1 else ''}"
    has = f"{seat.gpus} GPUs for a job at least, not {maximum}"
    if group.distributed and node.blocks > 1:
        return Misfit(
            f"a distributed task takes whole instances (all {node.blocks} blocks), but asks for {requested}",
            "ORCH242",
            f"ask for `gpu: {all_gpus}`",
            "resources.gpu",
            has=has,
        )
    if node.blocks > 1:
        least = f"{seat.blocks} block{'s' if seat.blocks > 1 else ''} of {seat.gpus} GPUs"
        return Misfit(
            f"no instance fits: a job takes at least {least}, but asks for {requested}",
            "ORCH243",
            f"set `blocks: {all_gpus}` on the fleet, or ask for `gpu: {maximum}..{seat.gpus}`",
            "resources.gpu",
            has=has,
        )
    return Misfit(
        f"no instance fits: a job takes the whole instance of {all_gpus} GPUs, but asks for {requested}",
        "ORCH243",
        f"ask for `gpu: {all_gpus}`"
        if group.distributed
        else f"set `blocks: {all_gpus}` on the fleet, or ask for `gpu: {maximum}..{all_gpus}`",
        "resources.gpu",
        has=has,
    )


_MEMORY = "MiB of memory"
_PATHS = {"GPUs": "resources.gpu", "CPUs": "resources.cpu", _MEMORY: "resources.memory"}


def _capacity(node: NodeState) -> dict[str, float]:
    capacity: dict[str, float] = {"GPUs": node.gpus.count}
    if node.cpus is not None:
        capacity["CPUs"] = node.cpus
    if node.memory_mib is not None:
        capacity[_MEMORY] = node.memory_mib
    return capacity


def _minimums(resources: Resources) -> dict[str, float]:
    """The minimums that the task sets itself: the language's defaults exclude no existing node."""
    set_fields = resources.model_fields_set
    minimums: dict[str, float] = {}
    if "gpu" in set_fields and resources.gpu.count.min:
        minimums["GPUs"] = resources.gpu.count.min
    if "cpu" in set_fields and resources.cpu.count.min:
        minimums["CPUs"] = resources.cpu.count.min
    if "memory_mib" in set_fields and resources.memory_mib.min:
        minimums[_MEMORY] = resources.memory_mib.min
    return minimums
