"""Settings of the backend `local`: Containers on this machine as nodes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.models.backends.base import OF_CLAIMS, BackendSettings
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section, plain
from orch.spec.models.fields.parsing import Misread, Path, Reads, read_as
from orch.spec.models.fields.types import Image, Size, Text, choice, whole
from orch.spec.models.resources import GpuSpec


def _kinds(value: object) -> tuple[Section, ...]:
    """One kind of accelerator, or a list of them."""
    if not isinstance(value, (list, tuple)):
        return (read_as(GpuSpec, value),)
    kinds: list[Section] = []
    wrong: list[tuple[Path, type[Section], object]] = []
    for index, item in enumerate(cast("list[object]", value)):
        try:
            kinds.append(read_as(GpuSpec, item, (index,)))
        except Misread as error:
            wrong += error.parts
    if wrong:
        raise Misread(wrong)  # type: ignore[arg-type]
    return tuple(kinds)


SimulatedGpus = Annotated[
    tuple[GpuSpec, ...],
    Reads(_kinds, json_schema.GPU, beside=True, write=lambda kinds: [plain(each) for each in kinds]),
]


class LocalSettings(BackendSettings):
    """Containers on this machine as nodes."""

    noun: ClassVar[str] = "the backend `local`"
    title: ClassVar[str] = "local"
    provisioned: ClassVar[bool] = True
    supports: ClassVar[frozenset[str]] = frozenset({"init", "mounts", "scratch", "volumes"})

    volumes_lack: ClassVar[tuple[str, ...]] = (
        *OF_CLAIMS,
        "region",
        "availability_zone",
        "disk_type",
        "iops",
        "throughput",
        "kms_key",
        "tags",
    )
    volumes_shared: ClassVar[bool] = True

    type: Annotated[Literal["local"], choice("local")] = Field(default="local", description="`local`.")
    engine: Annotated[Literal["auto", "docker", "podman"], choice("auto", "docker", "podman")] = Field(
        default="auto", description="Container engine."
    )
    node_image: Image | None = Field(default=None, description="Image of the node containers.")
    subnet: Text | None = Field(default=None, description="Network of the nodes; a free one if not given.")
    cpus: Annotated[int | None, whole(1, 4096)] = Field(
        default=None, description="CPUs the nodes of a fleet may use together."
    )
    memory_mib: Size | None = Field(
        default=None, validation_alias="memory", description="Memory the nodes of a fleet may use together."
    )
    gpus: Text = Field(default="all", description="`all`, `none`, or ids separated by commas.")
    simulate_gpu: SimulatedGpus = Field(
        default=(),
        description="Accelerators that nodes have in number only, for tries without devices: `H100:8`, or a "
        "list of kinds. A node takes the first kind that the fleet's `gpu` fits, and as many as it permits.",
    )
