"""The models: one module per kind of document, and one per block that several of them hold.

A property is one line of a model; its type in `fields/types.py` says how it reads. `KINDS` lists the
documents by their `type`, `MODELS` also those that configure the project and its backends.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import cast

from orch.spec.models.backends import BACKEND_MODELS
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.blocks import Budget, Health, InitStep, Mount, Network, Partition, Scratch
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.sizes import Nodes
from orch.spec.models.fleet import Fleet
from orch.spec.models.launchers import Mpirun, Rdzv, Torchrun
from orch.spec.models.mounts import FileMount, PortMapping, RegistryAuth, Repo, VolumeMount
from orch.spec.models.project import Defaults, ProjectSettings
from orch.spec.models.resources import CpuSpec, GpuSpec, Range, Resources
from orch.spec.models.run import DevEnvironment
from orch.spec.models.scheduling import Array, Checkpoint, Dependency, Signal
from orch.spec.models.ssh import Host, Jump, SshConfig
from orch.spec.models.task import Task, TaskGroup
from orch.spec.models.volume import Volume

AnyDocument = Fleet | Task | DevEnvironment | Volume
AnyModel = AnyDocument | ProjectSettings | BackendSettings

KINDS: dict[str, type[AnyDocument]] = {
    "fleet": Fleet,
    "task": Task,
    "dev-environment": DevEnvironment,
    "volume": Volume,
}
# A chain, so that no backend's settings are loaded for it.
MODELS: Mapping[str, type[AnyModel]] = ChainMap(
    {**KINDS, "project": ProjectSettings}, cast("dict[str, type[AnyModel]]", BACKEND_MODELS)
)

__all__ = [
    "BACKEND_MODELS",
    "KINDS",
    "MODELS",
    "AnyDocument",
    "AnyModel",
    "Array",
    "BackendSettings",
    "Budget",
    "Checkpoint",
    "CpuSpec",
    "Defaults",
    "Dependency",
    "DevEnvironment",
    "FileMount",
    "Fleet",
    "GpuSpec",
    "Health",
    "Host",
    "InitStep",
    "Jump",
    "Mount",
    "Mpirun",
    "Network",
    "Nodes",
    "Partition",
    "PortMapping",
    "ProjectSettings",
    "Range",
    "Rdzv",
    "RegistryAuth",
    "Repo",
    "Resources",
    "Scratch",
    "Section",
    "Signal",
    "SshConfig",
    "Task",
    "TaskGroup",
    "Torchrun",
    "Volume",
    "VolumeMount",
]
