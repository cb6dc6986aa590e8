"""A volume on a node: attached, formatted where it is empty, mounted; and given back after the run.

Who attaches is passed in: the runner knows no cloud.
"""

from __future__ import annotations

from typing import Protocol

from orch.runner.errors import NodePreparing, RunFailed
from orch.runner.launch.run_plan import RunPlan, RunVolume
from orch.runner.node.commands import NODE_HOME, Command, as_root
from orch.runner.node.connector import Completed, Connector
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState
from orch.templates import render

PREPARING, FAILED, FOREIGN = 47, 42, 49
FILESYSTEM = "ext4"
# How long a node may take to show a disk that its cloud has attached, and to format and mount it.
APPEAR_S = 120
MOUNT_S = 900.0


class VolumeAttacher(Protocol):
    """Attaches volumes to nodes, through their cloud."""

    def attach(self, volume: VolumeState, node: NodeState, *, read_only: bool) -> tuple[str, ...]:
        """Attach a volume unless it is; the paths by which the node may know its disk, the first that exists
        is it. Raises OrchError."""
        ...

    def detach(self, volume: VolumeState, node: NodeState) -> None:
        """Detach a volume where it is attached to that node, and wait until it is free. Raises OrchError."""
        ...


class NoVolumes:
    """Attaches nothing: for runs without volumes of a cloud."""

    def attach(self, volume: VolumeState, node: NodeState, *, read_only: bool) -> tuple[str, ...]:
        raise RunFailed(
            f"nobody here attaches the volume {volume.name}", where=node.name, reason="volume_error"
        )

    def detach(self, volume: VolumeState, node: NodeState) -> None:
        # The rank is not collected then, and who can detach it does so.
        raise RunFailed(
            f"nobody here detaches the volume {volume.name}", where=node.name, reason="volume_error"
        )


NO_VOLUMES = NoVolumes()


def mount_volumes(
    connector: Connector, attacher: VolumeAttacher, plan: RunPlan, rank: int
) -> tuple[str, ...]:
    """Make sure that a rank's node has its volumes mounted; returns notices. Repeating it changes nothing.

    Raises RunFailed (volume_error), NodePreparing, HostUnreachable.
    """
    node, notices = plan.ranks[rank].node, list[str]()
    for volume in plan.ranks[rank].volumes:
        if volume.by_folder:
            continue
        try:
            paths = attacher.attach(volume.state, node, read_only=volume.read_only)
        except OrchError as error:
            raise RunFailed(
                error.summary,
                where=error.where or node.name,
                detail=error.detail,
                hint=error.hint,
                code=error.code,
                reason="volume_error",
            ) from error
        result = connector.run(node, mount_command(plan, rank, volume, paths))
        _require_mounted(result, volume)
        told = (line.partition("orch:notice=") for line in result.stdout.splitlines())
        notices += [f"volume {volume.state.name}: {text}" for _, mark, text in told if mark]
    return tuple(notices)


def release_volumes(connector: Connector, attacher: VolumeAttacher, plan: RunPlan, rank: int) -> None:
    """Unmount and detach the volumes of a rank that no other job on its node uses. Raises OrchError."""
    node = plan.ranks[rank].node
    for volume in plan.ranks[rank].volumes:
        if volume.by_folder:
            continue
        result = connector.run(node, unmount_command(plan, rank, volume))
        if not result.ok:
            raise RunFailed(
                f"volume {volume.state.name} could not be unmounted on node {node.name}",
                where=node.name,
                detail=_last_line(result),
                reason="volume_error",
            )
        if "orch:free" in result.stdout.split():
            attacher.detach(volume.state, node)


def mount_command(plan: RunPlan, rank: int, volume: RunVolume, paths: tuple[str, ...]) -> Command:
    """Wait for the disk of a volume, format it where it is empty, mount it, and note the rank as its user."""
    text = render(
        "node-volume.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        volume=volume.state.volume_id,
        folder=volume.folder,
        paths=paths,
        filesystem=FILESYSTEM,
        read_only=volume.read_only,
        may_format=not volume.state.external and not volume.read_only,
        simulated=plan.simulated,
        appear_s=APPEAR_S,
        preparing=PREPARING,
        failed=FAILED,
        foreign=FOREIGN,
    )
    return Command(as_root(text), f"mount volume {volume.state.name}", timeout_s=MOUNT_S)


def unmount_command(plan: RunPlan, rank: int, volume: RunVolume) -> Command:
    """Forget the rank as a user of a volume, and unmount it when it was the last one."""
    text = render(
        "node-volume-release.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        volume=volume.state.volume_id,
        folder=volume.folder,
    )
    return Command(as_root(text), f"unmount volume {volume.state.name}", timeout_s=120.0)


def _require_mounted(result: Completed, volume: RunVolume) -> None:
    """Raises RunFailed or NodePreparing unless the volume is mounted."""
    if result.ok:
        return
    if result.exit_code == PREPARING:
        raise NodePreparing(f"node {result.node} is still being prepared", where=result.node)
    if result.exit_code == FOREIGN:
        raise RunFailed(
            f"volume {volume.state.name} holds something that is no file system orch can mount",
            where=result.node,
            detail=_last_line(result),
            hint="nothing was formatted: look at it with `orch ssh`, or name another volume",
            code="ORCH271",
            reason="volume_error",
        )
    raise RunFailed(
        f"volume {volume.state.name} could not be mounted on node {result.node}",
        where=result.node,
        detail=_last_line(result),
        code="ORCH271",
        reason="volume_error",
    )


def _last_line(result: Completed) -> str:
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    return lines[-1] if lines else result.ending
