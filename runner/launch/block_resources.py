"""The resources of some of a node's blocks: GPUs, CPUs and memory are split evenly, the disk is shared."""

from __future__ import annotations

from dataclasses import dataclass

from orch.spec.state import NodeState


@dataclass(frozen=True)
class BlockResources:
    """A part of a node, or all of it. None = not known, and not limited."""

    gpus: int
    cpus: float | None
    memory_mib: int | None


def share_of(node: NodeState, blocks: int) -> BlockResources:
    """The resources of `blocks` blocks of a node, rounded down; less than one CPU stays a fraction."""
    if blocks >= node.blocks:
        return BlockResources(node.gpus.count, node.cpus, node.memory_mib)
    cpus = None if node.cpus is None else node.cpus * blocks / node.blocks
    return BlockResources(
        gpus=node.gpus.count // node.blocks * blocks,
        cpus=float(int(cpus)) if cpus is not None and cpus >= 1 else cpus,
        memory_mib=None if node.memory_mib is None else node.memory_mib * blocks // node.blocks,
    )
