"""Settings of the backend `local`: Containers on this machine as nodes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.fields.types import Image, Size, Text, choice, whole
from orch.spec.models.resources import GpuSpec


class LocalSettings(BackendSettings):
    """Containers on this machine as nodes."""

    noun: ClassVar[str] = "the backend `local`"
    title: ClassVar[str] = "local"
    provisioned: ClassVar[bool] = True
    supports: ClassVar[frozenset[str]] = frozenset({"init", "volumes"})

    type: Annotated[Literal["local"], choice("local")] = Field(default="local", description="`local`.")
    engine: Annotated[Literal["auto", "docker", "podman"], choice("auto", "docker", "podman")] = Field(
        default="auto", description="Container engine."
    )
    node_image: Image | None = Field(default=None, description="Image of the node containers.")
    subnet: Text | None = Field(default=None, description="Network of the nodes; a free one if not given.")
    cpus: Annotated[int | None, whole(1, 4096)] = Field(
        default=None, description="CPUs nodes may use in all."
    )
    memory_mib: Size | None = Field(
        default=None, validation_alias="memory", description="Memory nodes may use in all."
    )
    gpus: Text = Field(default="all", description="`all`, `none`, or ids separated by commas.")
    simulate_gpu: GpuSpec | None = Field(
        default=None, description="Pretend to have these, without devices: for tests."
    )
