"""Whether what a run saves in its checkpoint folder is there for a later attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from orch.runner.launch.environment import fold
from orch.runner.launch.run_plan import RunMount, RunPlan
from orch.spec.state import FleetMount


def checkpoint_warnings(path: str, plan: RunPlan, shared: Sequence[FleetMount]) -> Iterator[str]:
    """ORCH263 for ranks whose checkpoint folder does not outlive their container, cannot be written, or stays
    behind on a node that a cloud takes away. `shared`: the fleet's file systems.

    What lies in a folder of an existing host is the owner's affair: it may be a file system of theirs.
    """
    found: dict[str, list[str]] = {}
    for rank in plan.ranks:
        why = _why_lost(path, rank.mounts, shared, of_a_cloud=plan.backend not in ("local", "ssh"))
        if why is not None:
            found.setdefault(why, []).append(rank.node.name)
    for why, nodes in found.items():
        where = "" if len(nodes) == len(plan.ranks) else f" on {fold(nodes)}"
        yield f"ORCH263: what is saved in {path}{where} is not there for a later attempt: {why}"


def _why_lost(
    path: str, mounts: Sequence[RunMount], shared: Sequence[FleetMount], *, of_a_cloud: bool
) -> str | None:
    holding = [mount for mount in mounts if _within(path, mount.target)]
    if not holding:
        return "it is in the container alone; put it on a volume, or on one of the fleet's `mounts`"
    mount = max(holding, key=lambda each: len(each.target))
    if mount.read_only:
        return f"{mount.target} is mounted read-only"
    on_node = mount.check in ("none", "make")
    if on_node and of_a_cloud and not any(_within(mount.source, each.path) for each in shared):
        return f"{mount.target} is a folder of the node itself, and goes with it; use a volume of the project"
    return None


def _within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(PurePosixPath(folder))
