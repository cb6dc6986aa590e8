"""The image of a run's jobs: which of those that could apply, and what the project has in its place. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.images import default_image
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.spec.models import Task


@dataclass(frozen=True)
class JobImage:
    """The image that is used, and the one that it stands for where `images` of orch.yml replaces it."""

    reference: str
    instead_of: str | None = None


def job_image(
    task: Task, fleet: FleetState, project_default: str | None, replacements: Mapping[str, str]
) -> JobImage:
    """The image of `task` on `fleet`.

    The task's own comes first; then a variant that it asks for (`python`, `nvcc`, `docker`), the fleet's, the
    project's default, and the default image for the accelerators of the fleet's nodes.
    """
    variant = default_image(_vendor(fleet), python=task.python, nvcc=task.nvcc, docker=task.docker)
    if task.image is not None:
        image = task.image
    elif task.python or task.nvcc or task.docker:
        image = variant
    else:
        image = fleet.image or project_default or variant
    return JobImage(replacements[image], image) if image in replacements else JobImage(image)


def _vendor(fleet: FleetState) -> str | None:
    """The vendor of the accelerators that all nodes have; None where they differ, or are simulated."""
    vendors = {node.gpus.vendor or "nvidia" if node.gpus.count else None for node in fleet.nodes}
    return next(iter(vendors)) if len(vendors) == 1 and not fleet.simulated else None
