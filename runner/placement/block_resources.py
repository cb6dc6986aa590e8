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


def limit_options(
    node: NodeState, blocks: int, max_cpus: float | None, max_memory_mib: int | None
) -> list[str]:
    """Docker's options for the share of some blocks of a node, and for less where an upper end is lower.

    Time, not certain CPUs: which are near a block's accelerators, or one core's two threads, differs from
    host to host.
    """
    share, whole = share_of(node, blocks), blocks >= node.blocks
    options: list[str] = []
    if max_cpus and (share.cpus is None or max_cpus < share.cpus):
        # Docker refuses `--cpus` of more than it has, which nobody may know here.
        options += ["--cpu-period=100000", f"--cpu-quota={int(max_cpus * 100_000)}"]
    elif share.cpus is not None and not whole:
        options.append(f"--cpus={share.cpus:g}")
    if max_memory_mib and (share.memory_mib is None or max_memory_mib < share.memory_mib):
        options.append(f"--memory={max_memory_mib}m")
    elif share.memory_mib is not None and not whole:
        options.append(f"--memory={share.memory_mib}m")
    return options
