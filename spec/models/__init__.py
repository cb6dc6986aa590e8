"""The models: one module per kind of document, and one per block that several of them hold.

A property is one line of a model; its type in `fields.py` says how it reads. `KINDS` lists the documents by
their `type`.
"""

from __future__ import annotations

from .fleet import Fleet, Nodes
from .launchers import Mpirun, Rdzv, Torchrun
from .project import Defaults, LocalBackend, Project
from .resources import CpuSpec, GpuSpec, Range, Resources
from .task import FileMount, InstanceVolume, Task

KINDS: dict[str, type[Fleet | Task]] = {"fleet": Fleet, "task": Task}

__all__ = [
    "KINDS",
    "CpuSpec",
    "Defaults",
    "FileMount",
    "Fleet",
    "GpuSpec",
    "InstanceVolume",
    "LocalBackend",
    "Mpirun",
    "Nodes",
    "Project",
    "Range",
    "Rdzv",
    "Resources",
    "Task",
    "Torchrun",
]
