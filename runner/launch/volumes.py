"""Which volumes each rank mounts, whether its node can have them, and whether they keep checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask, NoFit, RunConflict, RunnerError
from orch.runner.ledger.plans import plan_of
from orch.runner.node_api.commands import NODE_HOME
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.slots import is_of_cluster
from orch.runner.plan.run_plan import RunMount, RunPlan, RunVolume
from orch.spec.grammar.hosts import fold
from orch.spec.grammar.interpolate import render_text
from orch.spec.grammar.values import Problem, check_name
from orch.spec.state import FleetMount, FleetState, NodeState
from orch.spec.suggest import hint_for
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger
    from orch.spec.models import Task


class VolumeMisfit(NoFit):
    """A volume that the nodes of a run cannot have."""


@dataclass(frozen=True)
class KnownVolume:
    """A volume that is up. `folder`: where its nodes have it, None for one that has to be attached. `made`:
    its nodes are made with it, and have it where the task wants it."""

    state: VolumeState
    folder: str | None = None
    made: bool = False


@dataclass(frozen=True)
class VolumeUse:
    """A run that uses, or used, a volume on a node. `ended`: seconds since the epoch, None while active.

    `waiting`: it has no nodes now and nothing attached, and will use the volume on a node that it then gets.
    """

    run: str
    node: str
    ended: float | None = None
    waiting: bool = False


@dataclass(frozen=True)
class Volumes:
    """The volumes of a project, and the active runs that use each.

    `for_waiting`: the run that they are for has no nodes yet; where its volumes are, and who has them, is for
    the moment when it gets some.
    """

    known: Mapping[str, KnownVolume] = field(default_factory=dict[str, KnownVolume])
    uses: Mapping[str, Sequence[VolumeUse]] = field(default_factory=dict[str, Sequence[VolumeUse]])
    for_waiting: bool = False


NO_VOLUMES = Volumes()


@dataclass(frozen=True)
class RankVolumes:
    """What one rank mounts, and the volumes that its node must have for it."""

    mounts: tuple[RunMount, ...] = ()
    volumes: tuple[RunVolume, ...] = ()


def instance_volume(fleet: str, name: str) -> str:
    """The folder of a host with an instance volume of a fleet."""
    return f"{NODE_HOME}/instance-volumes/{fleet}/{name}"


def needs_volumes(task: Task) -> bool:
    """Whether a task names volumes of the project."""
    return any(mount.kind == "network" for mount in task.volumes)


def volume_uses(ledger: Ledger, *, active_only: bool = True) -> dict[str, list[VolumeUse]]:
    """Runs of a ledger by the name of the volume that they use. Runs that cannot be read are left out."""
    uses: dict[str, list[VolumeUse]] = {}
    for row in ledger.runs(active_only=active_only):
        try:
            plan = plan_of(row)
        except RunnerError:
            continue
        ended = None if row.active else row.finished_at or row.created_at
        for rank, recorded in zip(plan.ranks, row.ranks, strict=False):
            waiting = row.phase == "waiting" and recorded.collected
            for volume in rank.volumes:
                use = VolumeUse(row.name, rank.node.name, ended, waiting)
                uses.setdefault(volume.state.name, []).append(use)
    return uses


def volumes_of_ranks(
    task: Task,
    values: Sequence[Mapping[str, str]],
    seats: Sequence[Seat],
    fleet: FleetState,
    volumes: Volumes,
) -> tuple[tuple[RankVolumes, ...], tuple[str, ...]]:
    """The mounts of each rank, and warnings: the task's volumes, and the fleet's shared file systems but for
    those in whose place the task has a volume. `values`: what references are filled in with, by rank.

    Raises BadTask (ORCH115, a name that no volume can have; ORCH153, a path that is mounted twice),
    VolumeMisfit (ORCH261, 266, 268, 269), RunConflict (ORCH267).
    """
    ranks = [
        _of_rank(task, each, seat.node, fleet, volumes) for each, seat in zip(values, seats, strict=True)
    ]
    return tuple(ranks), _check_sharing(task, ranks, seats)


def _of_rank(
    task: Task, values: Mapping[str, str], node: NodeState, fleet: FleetState, volumes: Volumes
) -> RankVolumes:
    mounts: list[RunMount] = []
    attached: dict[str, RunVolume] = {}
    targets: dict[str, int] = {}
    for index, mount in enumerate(task.volumes):
        target = render_text(mount.path, values)
        if target in targets:
            raise BadTask(
                f"{target} is mounted twice, by `volumes[{targets[target]}]` and `volumes[{index}]`",
                hint="give each volume its own path",
                code="ORCH153",
                path=f"volumes.{index}",
            )
        targets[target] = index
        if mount.kind == "folder":
            # A pod of a cluster has it at its path already.
            source = target if is_of_cluster(node) else render_text(mount.instance_path, values)
            mounts.append(
                RunMount(source=source, target=target, read_only=mount.read_only, optional=mount.optional)
            )
            continue
        names = [_checked(render_text(name, values), index) for name in mount.names]
        if mount.kind == "managed":
            source = target if is_of_cluster(node) else instance_volume(fleet.name, names[0])
            mounts.append(RunMount(source=source, target=target, read_only=mount.read_only, check="make"))
            continue
        known = _first_usable(names, index, node, fleet, volumes)
        read_only = mount.read_only or known.state.read_only
        folder = target if known.made else known.folder
        volume = RunVolume(
            state=known.state,
            folder=folder or f"{NODE_HOME}/volumes/{known.state.volume_id}",
            by_folder=folder is not None,
            read_only=read_only,
        )
        before = attached.get(known.state.name)
        # One that is mounted at two paths can be written to if one of them can.
        attached[known.state.name] = volume if before is None or not volume.read_only else before
        check = "made" if known.made else "volume"
        mounts.append(RunMount(source=volume.folder, target=target, read_only=read_only, check=check))
    shared = (
        RunMount(
            source=mount.path,
            target=mount.path,
            read_only=mount.read_only,
            optional=mount.optional,
            check=mount.check,
        )
        for mount in fleet.mounts
        if mount.path not in targets
    )
    return RankVolumes((*shared, *mounts), tuple(attached.values()))


def _checked(name: str, index: int) -> str:
    try:
        return check_name(name)
    except Problem as problem:
        raise BadTask(
            f"`volumes[{index}]` names the volume {name!r}: {problem.summary}",
            hint=problem.hint,
            code=problem.code,
            path=f"volumes.{index}",
        ) from None


def _first_usable(
    names: Sequence[str], index: int, node: NodeState, fleet: FleetState, volumes: Volumes
) -> KnownVolume:
    """The first of the volumes that a node can have. Raises the first one's error, with the others' in it."""
    errors: list[RunnerError] = []
    for name in names:
        try:
            return _usable(name, f"volumes.{index}", node, fleet, volumes)
        except RunnerError as error:
            errors.append(error)
    first = errors[0]
    if len(errors) > 1:
        first.detail = "\n".join(
            f"{name}: {error.summary}" for name, error in zip(names, errors, strict=True)
        )
    raise first


def volumes_to_make_with(task: Task, fleet: FleetState, volumes: Volumes) -> tuple[KnownVolume, ...]:
    """Of the names of a task's first volume, those that new nodes of a fleet can be made with.

    Raises BadTask (ORCH115), VolumeMisfit (ORCH268, 269) where they can be made with none of them."""
    found: list[KnownVolume] = []
    errors: list[VolumeMisfit] = []
    for mount in task.volumes[:1]:
        for name in mount.names:
            try:
                found.append(_of_fleet(_checked(name, 0), "volumes.0", fleet, volumes))
            except VolumeMisfit as error:
                errors.append(error)
    if errors and not found:
        raise errors[0]
    return tuple(found)


def _of_fleet(name: str, path: str, fleet: FleetState, volumes: Volumes) -> KnownVolume:
    """A volume by its name. Raises VolumeMisfit where no node of the fleet could have it."""
    known = volumes.known.get(name)
    if fleet.backend == "ssh":
        raise VolumeMisfit(
            f"existing hosts have no volume {name}: what is attached to them is theirs",
            path=path,
            fleets=(fleet.name,),
            hint=f"mount a folder of the host, `/folder:/path`, or add `instance: true` to {name}",
            code="ORCH269",
        )
    if known is None:
        raise VolumeMisfit(
            f"the volume {name} is not up in this project",
            path=path,
            detail=f"up here: {', '.join(volumes.known) or 'none'}",
            hint=hint_for(name, list(volumes.known)) or "bring it up first: `orch up volume.yml`",
            code="ORCH268",
        )
    state = known.state
    if state.backend != fleet.backend:
        from orch.spec.models.backends import title

        raise VolumeMisfit(
            f"volume {name} is of {title(state.backend)}, and the nodes of fleet {fleet.name} are of "
            f"{title(fleet.backend)}",
            path=path,
            fleets=(fleet.name,),
            hint=f"make a volume with `backend: {fleet.backend}`, or use a fleet of {title(state.backend)}",
            code="ORCH269",
        )
    return known


def _usable(name: str, path: str, node: NodeState, fleet: FleetState, volumes: Volumes) -> KnownVolume:
    """The same for a node that is there. Raises VolumeMisfit or RunConflict when that cannot have it."""
    known = _of_fleet(name, path, fleet, volumes)
    state = known.state
    if known.folder is not None or volumes.for_waiting:
        return known
    for kind, here, there in (("region", node.region, state.region), ("zone", node.zone, state.zone)):
        if here is not None and there is not None and here != there:
            raise VolumeMisfit(
                f"volume {name} is in {kind} {there}, and node {node.name} is in {here}",
                path=path,
                fleets=(fleet.name,),
                detail="a disk can be attached in its own zone only",
                hint=f"pin the fleet with `availability_zones: [{state.place}]`, or make a volume in {here}",
                code="ORCH261",
            )
    if known.made:
        return known
    elsewhere = [
        each
        for each in volumes.uses.get(name, ())
        if each.ended is None and not each.waiting and each.node != node.name
    ]
    if elsewhere:
        raise RunConflict(
            f"volume {name} is in use by run {elsewhere[0].run}, on node {elsewhere[0].node}",
            detail=f"it can be attached to one node at a time; this run would have it on {node.name}",
            hint=f"wait for it, or end it with `orch stop {elsewhere[0].run}`",
            code="ORCH267",
        )
    return known


def _check_sharing(task: Task, ranks: Sequence[RankVolumes], seats: Sequence[Seat]) -> tuple[str, ...]:
    """Warnings of volumes that several nodes share. Raises VolumeMisfit (ORCH266)."""
    nodes: dict[str, dict[str, None]] = {}
    states: dict[str, RunVolume] = {}
    for rank, seat in zip(ranks, seats, strict=True):
        for volume in rank.volumes:
            nodes.setdefault(volume.state.name, {})[seat.node.name] = None
            states[volume.state.name] = volume
    for name, users in nodes.items():
        single = states[name].state.sharing == "single"
        if len(users) > 1 and (single or not states[name].by_folder):
            why = "is of `sharing: single`" if single else "can be attached to one node at a time"
            raise VolumeMisfit(
                f"volume {name} {why}, and {len(users)} nodes would mount it",
                path=_path_of(task, name),
                hint=f"name one volume for each node: `{name}-${{{{ orch.node_rank }}}}`",
                code="ORCH266",
            )
    return ()


def _path_of(task: Task, name: str) -> str:
    index = next((i for i, each in enumerate(task.volumes) if name in each.names), 0)
    return f"volumes.{index}"


def checkpoint_warnings(path: str, plan: RunPlan, fleet: FleetState) -> Iterator[str]:
    """ORCH263 for ranks whose checkpoint folder does not outlive their container, cannot be written, or stays
    behind on a node that a cloud takes away, or that is one of several local ones: each is a container with
    folders of its own.

    What lies in a folder of an existing host is the owner's affair: it may be a file system of theirs.
    """
    goes: str | None = "goes with it"
    if plan.backend == "local":
        goes = "other nodes do not have it" if len(fleet.nodes) > 1 else None
    elif plan.backend == "ssh":
        goes = None
    found: dict[str, list[str]] = {}
    for rank in plan.ranks:
        why = _why_lost(path, rank.mounts, fleet.mounts, goes)
        if why is not None:
            found.setdefault(why, []).append(rank.node.name)
    for why, nodes in found.items():
        where = "" if len(nodes) == len(plan.ranks) else f" on {fold(nodes)}"
        yield f"ORCH263: what is saved in {path}{where} is not there for a later attempt: {why}"


def _why_lost(
    path: str, mounts: Sequence[RunMount], shared: Sequence[FleetMount], goes: str | None
) -> str | None:
    """`goes`: what happens to a folder of the node itself, or None where nothing does."""
    holding = [mount for mount in mounts if _within(path, mount.target)]
    if not holding:
        return "it is in the container alone; put it on a volume, or on one of the fleet's `mounts`"
    mount = max(holding, key=lambda each: len(each.target))
    if mount.read_only:
        return f"{mount.target} is mounted read-only"
    on_node = mount.check in ("none", "make")
    if on_node and goes and not any(_within(mount.source, each.path) for each in shared):
        return f"{mount.target} is a folder of the node itself, and {goes}; use a volume of the project"
    return None


def _within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(PurePosixPath(folder))
