"""A volume on a node: attached, formatted where it is empty, mounted; and given back after the run.

Who attaches is passed in: the runner knows no cloud.
"""

from __future__ import annotations

import secrets
import time
from typing import Protocol

from orch.runner.errors import DetachPending, NodePreparing, RunFailed, VolumeDetaching
from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.node_api.connector import Completed, Connector
from orch.runner.plan.run_plan import RunPlan, RunVolume
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState
from orch.templates import render

PREPARING, FAILED, FOREIGN, DETACHING = 47, 42, 49, 48
FILESYSTEM = "ext4"
# How long a node may take to show a disk that its cloud has attached, and to format and mount it.
APPEAR_S = 120
MOUNT_S = 900.0
# A cloud is asked to detach a disk within this time after the node said that it is free; later the node is
# asked again, for this machine may have slept meanwhile.
DETACH_WITHIN_S = 60.0
# How old the mark of a detaching may become on a node, in minutes: that time, and what a cloud may take.
DETACHING_MIN = 15
# How often a node is asked again.
RELEASES = 3


class VolumeAttacher(Protocol):
    """Attaches volumes to nodes, through their cloud."""

    def attach(self, volume: VolumeState, node: NodeState, *, read_only: bool) -> tuple[str, ...]:
        """Attach a volume unless it is; the paths by which the node may know its disk, the first that exists
        is it. Raises OrchError."""
        ...

    def detach(self, volume: VolumeState, node: NodeState) -> None:
        """Detach a volume where it is attached to that node, and wait until it is free.

        Raises DetachPending when it may still happen, any other OrchError when it will not.
        """
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

    The node notes the rank as a user of the volume first. From then on nobody detaches the disk from it, so
    what the cloud says of the disk after that stays true.

    Raises RunFailed (volume_error), NodePreparing, VolumeDetaching, HostUnreachable.
    """
    node, notices = plan.ranks[rank].node, list[str]()
    for volume in plan.ranks[rank].volumes:
        if volume.by_folder:
            continue
        _require_reserved(connector.run(node, reserve_command(plan, rank, volume)), volume)
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
    for volume in plan.ranks[rank].volumes:
        if not volume.by_folder:
            _release(connector, attacher, plan, rank, volume)


def _release(
    connector: Connector, attacher: VolumeAttacher, plan: RunPlan, rank: int, volume: RunVolume
) -> None:
    """Unmount and detach one volume, unless others use it.

    The node keeps a mark from the unmounting until the disk is detached, and whoever wants the disk there
    waits for it. A refused detaching is over too; one that may still happen keeps its mark until that is old.
    """
    node = plan.ranks[rank].node
    for _ in range(RELEASES):
        asked, token = time.time(), secrets.token_hex(8)
        result = connector.run(node, unmount_command(plan, rank, volume, token))
        if not result.ok:
            raise RunFailed(
                f"volume {volume.state.name} could not be unmounted on node {node.name}",
                where=node.name,
                detail=_last_line(result),
                reason="volume_error",
            )
        if "orch:free" not in result.stdout.split():
            return
        if time.time() - asked > DETACH_WITHIN_S:
            continue
        try:
            attacher.detach(volume.state, node)
        except DetachPending:
            raise
        except OrchError:
            connector.run(node, detached_command(volume, token))
            raise
        result = connector.run(node, detached_command(volume, token))
        if not result.ok:
            raise RunFailed(
                f"node {node.name} was not told that volume {volume.state.name} is detached",
                where=node.name,
                detail=_last_line(result),
                reason="volume_error",
            )
        return
    raise RunFailed(
        f"volume {volume.state.name} was not detached from node {node.name}",
        where=node.name,
        detail=f"the node took more than {DETACH_WITHIN_S:.0f} s to answer, {RELEASES} times",
        reason="volume_error",
    )


def reserve_command(plan: RunPlan, rank: int, volume: RunVolume) -> Command:
    """Note the rank as a user of a volume, before its disk is attached."""
    text = render(
        "node-volume-reserve.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        volume=volume.state.volume_id,
        detaching_min=DETACHING_MIN,
        preparing=PREPARING,
        detaching=DETACHING,
        failed=FAILED,
    )
    return Command(as_root(text), f"reserve volume {volume.state.name}", timeout_s=120.0)


def mount_command(plan: RunPlan, rank: int, volume: RunVolume, paths: tuple[str, ...]) -> Command:
    """Wait for the disk of a volume, format it where it is empty, and mount it."""
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
        failed=FAILED,
        foreign=FOREIGN,
    )
    return Command(as_root(text), f"mount volume {volume.state.name}", timeout_s=MOUNT_S)


def unmount_command(plan: RunPlan, rank: int, volume: RunVolume, token: str) -> Command:
    """Forget the rank as a user of a volume, and unmount it when it was the last one.

    `token` tells the mark of this detaching from others of the same rank.
    """
    text = render(
        "node-volume-release.sh.j2",
        home=NODE_HOME,
        name=plan.container(rank),
        volume=volume.state.volume_id,
        folder=volume.folder,
        token=token,
        detaching_min=DETACHING_MIN,
        failed=FAILED,
    )
    return Command(as_root(text), f"unmount volume {volume.state.name}", timeout_s=120.0)


def detached_command(volume: RunVolume, token: str) -> Command:
    """Remove the mark of a detaching from a node."""
    text = render("node-volume-detached.sh.j2", home=NODE_HOME, volume=volume.state.volume_id, token=token)
    return Command(as_root(text), f"release volume {volume.state.name}", timeout_s=120.0)


def _require_reserved(result: Completed, volume: RunVolume) -> None:
    """Raises RunFailed, NodePreparing or VolumeDetaching unless the rank is noted as a user of the volume."""
    if result.ok:
        return
    if result.exit_code == PREPARING:
        raise NodePreparing(f"node {result.node} is still being prepared", where=result.node)
    if result.exit_code == DETACHING:
        raise VolumeDetaching(
            f"volume {volume.state.name} is being detached from node {result.node}",
            where=result.node,
            detail=f"job {result.stdout.strip().rpartition('orch:detaching=')[2]} has used it there",
        )
    raise RunFailed(
        f"node {result.node} could not note who uses volume {volume.state.name}",
        where=result.node,
        detail=_last_line(result),
        code="ORCH271",
        reason="volume_error",
    )


def _require_mounted(result: Completed, volume: RunVolume) -> None:
    """Raises RunFailed unless the volume is mounted."""
    if result.ok:
        return
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
