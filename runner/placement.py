"""Which fleet and nodes a task gets: pure functions. Whether nodes are free in truth, their claims decide."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.runner.errors import NoFit
from orch.spec.state import FleetState, NodeState

if TYPE_CHECKING:
    from orch.spec.models import Task


@dataclass(frozen=True)
class Seat:
    """A node as one rank gets it: how many of its blocks, and the accelerators in those."""

    node: NodeState
    blocks: int
    gpus: int


def choose_fleet(task: Task, fleets: Mapping[str, FleetState], wanted: str | None) -> FleetState:
    """The fleet to run `task` on: `wanted`, else one of the task's `fleets`, else the only one that fits.

    Raises NoFit saying what each fleet lacks.
    """
    if not fleets:
        raise NoFit("there is no fleet to run on", hint="run `orch up FILE` first")
    names = (wanted,) if wanted is not None else task.fleets or tuple(fleets)
    unknown = [name for name in names if name not in fleets]
    if len(unknown) == len(names):
        raise NoFit(
            f"no fleet named {' or '.join(unknown)} is provisioned here",
            detail=f"provisioned: {', '.join(sorted(fleets))}",
            hint="run `orch up FILE` first, or name another fleet with `--fleet`",
        )
    why_not = {name: misfit(task, fleets[name]) for name in names if name in fleets}
    fitting = [name for name, reason in why_not.items() if reason is None]
    if not fitting:
        told = "; ".join(f"{name}: {reason}" for name, reason in why_not.items())
        raise NoFit("no fleet fits this task", detail=told, hint=_hint(task))
    if len(fitting) > 1 and wanted is None and not task.fleets:
        raise NoFit(
            f"{len(fitting)} fleets fit this task: {', '.join(sorted(fitting))}",
            hint="choose one with `--fleet`, or write `fleets: [NAME]` in the task",
        )
    return fleets[fitting[0]]


def misfit(task: Task, fleet: FleetState) -> str | None:
    """Why `task` cannot run on `fleet` even when all of it is idle; None when it can."""
    if task.nodes > 1 and fleet.placement != "cluster":
        return "a distributed task needs `placement: cluster`"
    if len(fleet.nodes) < task.nodes:
        return f"it has {len(fleet.nodes)} nodes, the task needs {task.nodes}"
    reasons = [reason for node in fleet.nodes if (reason := _node_misfit(task, node)) is not None]
    if len(fleet.nodes) - len(reasons) < task.nodes:
        return reasons[0]
    return None


def place(task: Task, fleet: FleetState, occupied: Collection[str] = ()) -> tuple[Seat, ...]:
    """Nodes in rank order, neighbours in the topology together; `occupied` ones only when no other is left.

    Raises NoFit when the fleet is too small.
    """
    reason = misfit(task, fleet)
    if reason is not None:
        raise NoFit(f"fleet {fleet.name} does not fit this task", detail=reason, hint=_hint(task))
    fitting = [node for node in fleet.nodes if _node_misfit(task, node) is None]
    by_rank = sorted(fitting, key=lambda node: (node.name in occupied, node.topology, node.index))[
        : task.nodes
    ]
    chosen = sorted(by_rank, key=lambda node: (node.topology, node.index))
    return tuple(_seat(task, node) for node in chosen)


def _seat(task: Task, node: NodeState) -> Seat:
    blocks = node.blocks if task.nodes > 1 else blocks_needed(task, node)
    return Seat(node, blocks, node.gpus.count * blocks // max(1, node.blocks))


def blocks_needed(task: Task, node: NodeState) -> int:
    """How many blocks a one-node job takes: the fewest that hold the least its `resources` ask for."""
    if node.blocks <= 1:
        return node.blocks
    wanted, have = _minimums(task), _capacity(node)
    share = max(
        (math.ceil(wanted[what] * node.blocks / have[what]) for what in wanted if have.get(what)), default=1
    )
    return min(node.blocks, max(1, share))


def _node_misfit(task: Task, node: NodeState) -> str | None:
    have = _capacity(node)
    for what, least in _minimums(task).items():
        if what in have and have[what] < least:
            return f"node {node.name} has {have[what]:g} {what}, the task asks for {least:g}"
    names = task.resources.gpu.names
    if (
        names
        and node.gpus.name is not None
        and node.gpus.name.lower() not in {name.lower() for name in names}
    ):
        return f"node {node.name} has {node.gpus.name} GPUs, the task asks for {' or '.join(names)}"
    return None


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


def _hint(task: Task) -> str:
    if task.nodes > 1:
        return "provision a fleet with `placement: cluster` and enough nodes, or lower `nodes` of the task"
    return "provision a larger fleet, or lower the task's `resources`"


def in_rank_order(nodes: Sequence[NodeState]) -> tuple[str, ...]:
    """Node names, as a run's messages list them."""
    return tuple(node.name for node in nodes)
