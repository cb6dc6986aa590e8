"""Volumes: what orch asks of a backend that has them. A backend gives its own by `Backend.volumes`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components import accounts
from orch.components.request import CloudAnswer
from orch.spec.errors import ExitCode, OrchError
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.volume import Volume
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

STACK = "volume."
"""How names of stacks of volumes begin; no fleet's name has a dot."""


class VolumeError(OrchError):
    """A volume cannot be attached or detached."""

    exit_code = ExitCode.PROVISION


@dataclass(frozen=True)
class Account:
    """How a backend is asked: its settings in orch.yml, and the session of a rehearsal, None outside. `root`:
    the project's folder."""

    settings: Sequence[BackendSettings] = ()
    session: Callable[[str], Any] = lambda backend: None
    root: Path = Path()


@dataclass(frozen=True)
class VolumeRequest:
    """A volume to plan. `previous`: as it was last brought up. `scope` tells this project's from others'."""

    volume: Volume
    account: Account
    previous: VolumeState | None
    scope: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    # Zones where nodes of the project are, on the volume's backend.
    near: tuple[str, ...] = ()


@dataclass(frozen=True)
class VolumePlan:
    """A planned volume: its state but for the id of a new one, and what makes it.

    `register` makes the resource inside a Pulumi program and gives the volume's id. `images`: images of this
    machine that it needs. `account`: the account that the plan is for, if the backend has
    `accounts_per_stack`.
    """

    state: VolumeState
    reasons: tuple[str, ...]
    register: Callable[[], pulumi.Output[str]]
    images: tuple[str, ...] = ()
    account: accounts.Account | None = None
    answer: Callable[[str], CloudAnswer | None] = lambda text: None


@dataclass(frozen=True)
class Attachment:
    """Where a node finds an attached volume: the paths of its disk, the first that exists is it."""

    paths: tuple[str, ...]


class VolumeBackend(ABC):
    """The volumes of one backend.

    `fixed`: properties of a VolumeState that no volume changes in place, each with its property in the file.
    """

    fixed: ClassVar[Mapping[str, str]] = {"backend": "backend"}

    @abstractmethod
    def plan(self, request: VolumeRequest) -> VolumePlan:
        """What the volume becomes. May ask the backend. Raises PlanErrors, and what asking raises."""

    def clear(self, account: Account, volume: VolumeState, stack: str) -> Iterable[str]:
        """Remove what was made with a volume of orch's own and is of no use any more, once that is deleted:
        what was removed, each as it goes. `stack`: PROJECT/STACK. Raises what asking the backend raises."""
        return ()


class FolderVolumes(VolumeBackend):
    """Volumes that every node of the backend finds as a folder; nothing is attached."""

    @abstractmethod
    def folder(self, volume: VolumeState) -> str:
        """The folder of nodes that is the volume."""


class MadeWithVolumes(VolumeBackend):
    """Volumes that nodes have because they are made with them: containers of a run, which names the volume.
    Nothing is attached later, and nodes of several runs may have the same one."""


class DiskVolumes(VolumeBackend):
    """Volumes that are disks, attached to a node while runs there use them."""

    @abstractmethod
    def attach(
        self, account: Account, volume: VolumeState, node: NodeState, *, read_only: bool
    ) -> Attachment:
        """Attach a volume to a node; one that is attached there already is left so.

        Raises VolumeError, with ORCH267 when it is attached to another node.
        """

    @abstractmethod
    def detach(self, account: Account, volume: VolumeState, node: NodeState) -> None:
        """Detach a volume from a node and wait until it is free; one that is not attached there is left so.

        Raises DetachPending when the backend, asked now or before, may still do it; CloudRefused when it will
        not.
        """

    @abstractmethod
    def users(self, account: Account, volume: VolumeState) -> tuple[str, ...]:
        """The machines that a volume is attached to, by the backend's names; none when it is gone."""

    @abstractmethod
    def detach_hint(self, volume: VolumeState, machine: str) -> str:
        """The command of the backend's own tool that detaches a volume from one of its `users`."""


def state_of(volume: Volume, backend: str, **own: Any) -> VolumeState:
    """The state of a volume: what its file alone decides, and its `own` that the backend adds."""
    common = {
        "name": volume.name,
        "backend": backend,
        "region": volume.region,
        "read_only": volume.read_only,
        "sharing": volume.sharing,
        "protect": volume.protect,
        "auto_cleanup_s": volume.auto_cleanup_duration_s,
    }
    return VolumeState.model_validate(common | own)


def replaced_property(
    volumes: VolumeBackend, before: VolumeState, after: VolumeState
) -> tuple[str, str] | None:
    """The first property that cannot change in place and does: of the state, and as the file calls it."""
    return next(
        (
            (attribute, key)
            for attribute, key in volumes.fixed.items()
            if getattr(before, attribute) != getattr(after, attribute)
        ),
        None,
    )


def in_words(size_mib: int | None) -> str:
    """A size as people write it: `500 GB`."""
    if size_mib is None:
        return "no size"
    return f"{size_mib / 1024:g} GB" if size_mib % 1024 == 0 else f"{size_mib} MB"
