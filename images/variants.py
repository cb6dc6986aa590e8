"""Which image a job gets, and which default images there are: by accelerators of its nodes, `python`, `nvcc`
and `docker`. Pure.

Python 3.11 is that of Debian bookworm, 3.9 and 3.13 are those of bullseye and trixie: their images are built
where a Debian mirror can be reached. The others stand on the official image of Python, from a registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.spec.models import Task

DEFAULT = "orch/job"
DEFAULT_PYTHON = "3.11"

DEBIAN_RELEASES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
"""Python version -> the Debian release whose own it is. Source: packages.debian.org, python3 of each."""

# Those that `python` of a task takes.
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")

# What pip takes torch from: its wheels bring what they need of CUDA or ROCm, the node has the driver.
# Source: pytorch.org, "Start locally"; PyPI has those for CUDA.
_CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
_WHEELS = {
    "nvidia": "https://pypi.org/simple",
    "nvcc": "https://pypi.org/simple",
    "amd": "https://download.pytorch.org/whl/rocm6.4",
}
_PACKAGES = {"nvcc": "nvidia-cuda-toolkit g++"}


@dataclass(frozen=True)
class Recipe:
    """Recipe of an image: the folder of its Dockerfile, its base, and its build arguments.

    Of `release` (a Debian release), `registry_image` and `own_image` (one of ours) exactly one is set.
    """

    folder: str
    release: str | None = None
    registry_image: str | None = None
    own_image: str | None = None
    arguments: tuple[tuple[str, str], ...] = ()


def default_image(
    vendor: str | None, *, python: str | None = None, nvcc: bool = False, docker: bool = False
) -> str:
    """The image of a job that names none. `vendor`: of accelerators that all of its nodes have.

    Accelerators that are simulated count as none: what an image has for them would find no device.
    """
    if docker:
        return "orch/docker"
    kind = "nvcc" if nvcc else vendor if vendor in _WHEELS else None
    if kind is None:
        return DEFAULT if python is None else f"orch/python{python}"
    return f"orch/{kind}-python{python or DEFAULT_PYTHON}"


def variants() -> tuple[str, ...]:
    """Names under `orch/` of all default images but `job`."""
    kinds = ("", *(f"{kind}-" for kind in _WHEELS))
    return ("docker", *(f"{kind}python{version}" for kind in kinds for version in PYTHONS))


def described() -> str:
    """The names of `variants` in one line."""
    prefixes = " or ".join(f"{kind}-" for kind in _WHEELS)
    return f"orch/docker, orch/python{PYTHONS[0]} to {PYTHONS[-1]}, also with {prefixes} before `python`"


def recipe(name: str) -> Recipe | None:
    """Return the recipe of the image `orch/NAME`; None for a name that is no variant."""
    if name not in variants():
        return None
    if name == "docker":
        return Recipe("docker", release="bookworm")
    kind, _, version = name.rpartition("python")
    kind = kind.removesuffix("-")
    release = DEBIAN_RELEASES.get(version)
    packages = (("PACKAGES", _PACKAGES[kind]),) if kind in _PACKAGES else ()
    if not kind and version == DEFAULT_PYTHON:
        return Recipe("python", own_image=DEFAULT)
    if release is not None:
        torch = (("TORCH", _WHEELS[kind]),) if kind else (("TORCH", "debian"), ("USE_LIBUV", "0"))
        return Recipe("python", release=release, arguments=(*torch, *packages))
    torch = _WHEELS.get(kind, _CPU_WHEELS)
    official = f"python:{version}-slim-bookworm"
    return Recipe("python", registry_image=official, arguments=(("TORCH", torch), *packages))


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
