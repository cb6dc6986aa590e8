"""The volumes of a project for runs: which there are, and attaching them to nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.runner.launch.volumes import KnownVolume, Volumes, volume_uses
from orch.runner.node.volumes import VolumeAttacher
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState
from orch.stacks.project import Project

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger


def volumes_for(project: Project, ledger: Ledger) -> Volumes:
    """The volumes that are up, and the active runs that use them. Raises StackError, VolumeError."""
    return Volumes(usable_volumes(project), volume_uses(ledger))


def usable_volumes(project: Project) -> dict[str, KnownVolume]:
    """The volumes that are up, and how nodes have them. Raises StackError, VolumeError."""
    from orch.components.volumes import FolderVolumes, MadeWithVolumes, volumes_of
    from orch.stacks.volumes.state import known_volumes

    known: dict[str, KnownVolume] = {}
    for name, state in known_volumes(project).items():
        volumes = volumes_of(state.backend)
        folder = volumes.folder(state) if isinstance(volumes, FolderVolumes) else None
        known[name] = KnownVolume(state, folder, isinstance(volumes, MadeWithVolumes))
    return known


@dataclass(frozen=True)
class ProjectVolumes:
    """Attaches disks through the clouds of a project."""

    project: Project

    def attach(self, volume: VolumeState, node: NodeState, *, read_only: bool) -> tuple[str, ...]:
        """See `VolumeAttacher`."""
        from orch.components.volumes import disks_of
        from orch.stacks.pulumi.accounts import require_own
        from orch.stacks.volumes.program import account_of
        from orch.stacks.volumes.state import stack_of

        require_own(stack_of(self.project, volume.name))
        account = account_of(self.project, volume.backend)
        return disks_of(volume.backend).attach(account, volume, node, read_only=read_only).paths

    def detach(self, volume: VolumeState, node: NodeState) -> None:
        """See `VolumeAttacher`."""
        from orch.components.volumes import disks_of
        from orch.stacks.pulumi.accounts import require_own
        from orch.stacks.volumes.program import account_of
        from orch.stacks.volumes.state import stack_of

        require_own(stack_of(self.project, volume.name))
        disks_of(volume.backend).detach(account_of(self.project, volume.backend), volume, node)


def project_volumes(project: Project) -> VolumeAttacher:
    """What attaches the volumes of a project."""
    return ProjectVolumes(project)
