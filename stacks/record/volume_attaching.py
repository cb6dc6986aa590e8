"""The volumes of a project for runs: which there are, and attaching them to nodes.

A run without volumes loads none of what asks clouds: that is a third of the modules at its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.runner.launch.volumes import KnownVolume, Volumes, volume_uses
from orch.runner.node.volumes import VolumeAttacher
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState
from orch.stacks.project.project import Project

if TYPE_CHECKING:
    from orch.components.volumes import Account
    from orch.runner.ledger.ledger import Ledger


def volumes_for(project: Project, ledger: Ledger) -> Volumes:
    """The volumes that are up, and the active runs that use them. Raises StackError, VolumeError."""
    return Volumes(usable_volumes(project), volume_uses(ledger))


def usable_volumes(project: Project) -> dict[str, KnownVolume]:
    """The volumes that are up, and how nodes have them. Raises StackError, VolumeError."""
    from orch.components.registry.volumes import volumes_of
    from orch.components.volumes import FolderVolumes, MadeWithVolumes
    from orch.stacks.record.volumes import known_volumes

    known: dict[str, KnownVolume] = {}
    for name, state in known_volumes(project).items():
        volumes = volumes_of(state.backend)
        folder = volumes.folder(state) if isinstance(volumes, FolderVolumes) else None
        known[name] = KnownVolume(state, folder, isinstance(volumes, MadeWithVolumes))
    return known


def account_of(project: Project, backend: str) -> Account:
    """Return how a backend of a project is asked. Raises StackError."""
    from orch.components.volumes import Account
    from orch.stacks.secrets.values import backends_with_secrets

    return Account(backends_with_secrets(project, [backend]), project.session, project.root)


@dataclass(frozen=True)
class ProjectVolumes:
    """Attaches disks through the clouds of a project."""

    project: Project

    def attach(self, volume: VolumeState, node: NodeState, *, read_only: bool) -> tuple[str, ...]:
        """See `VolumeAttacher`."""
        from orch.components.registry.volumes import disks_of

        account = self._own_account(volume)
        return disks_of(volume.backend).attach(account, volume, node, read_only=read_only).paths

    def detach(self, volume: VolumeState, node: NodeState) -> None:
        """See `VolumeAttacher`."""
        from orch.components.registry.volumes import disks_of

        disks_of(volume.backend).detach(self._own_account(volume), volume, node)

    def _own_account(self, volume: VolumeState) -> Account:
        """Return the account of a volume's cloud. Raises OtherAccount for one that is not the volume's."""
        from orch.stacks.pulumi.accounts import require_own
        from orch.stacks.record.volumes import stack_of

        require_own(stack_of(self.project, volume.name))
        return account_of(self.project, volume.backend)


def project_volumes(project: Project) -> VolumeAttacher:
    """Return the attacher of a project's volumes."""
    return ProjectVolumes(project)
