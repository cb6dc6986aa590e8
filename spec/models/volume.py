"""`type: volume`: a disk that outlives nodes and runs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.fields.base import Section
from orch.spec.models.fields.types import (
    Flag,
    Name,
    Size,
    Tags,
    Text,
    choice,
    duration,
    names_of,
    reader,
    whole,
)
from orch.spec.models.selection import BackendName, check_backend

VOLUME_BACKENDS = ("aws", "gcp", "runpod", "kubernetes", "local", "nebius", "azure", "oci")


class Volume(Section):
    """Made and grown by orch, or registered when it exists already."""

    noun: ClassVar[str] = "a volume"
    spellings: ClassVar[dict[str, str]] = {"zone": "availability_zone"}

    type: Literal["volume"] = Field(default="volume", description="`volume`.")
    name: Name = Field(default="", description="Its identity; the file's name if not given.")
    backend: Annotated[str, reader(check_backend, BackendName)] = Field(description="Where it lies.")
    region: Text | None = Field(default=None, description="Required in a cloud.")
    availability_zone: Text | None = Field(default=None, description="Chosen if not given.")
    size_mib: Size | None = Field(
        default=None,
        validation_alias="size",
        description="Required unless an existing one is named; grows in place.",
    )
    volume_id: Text | None = Field(default=None, description="An existing one; orch never deletes it.")
    claim_name: Text | None = Field(
        default=None, description="Kubernetes: an existing claim; orch never deletes it."
    )
    storage_class_name: Text | None = Field(default=None, description="Kubernetes: storage class.")
    access_modes: Annotated[tuple[str, ...], names_of("access modes")] = Field(
        default=("ReadWriteOnce",), description="Kubernetes: access modes."
    )
    read_only: Flag = Field(default=False, description="Mounted read-only.")
    auto_cleanup_duration_s: Annotated[int | None, duration()] = Field(
        default=None, validation_alias="auto_cleanup_duration", description="Delete when unused this long."
    )
    tags: Tags = Field(default={}, description="Tags.")
    kind: Annotated[
        Literal["block", "efs", "fsx-lustre", "filestore", "nfs"],
        choice("block", "efs", "fsx-lustre", "filestore", "nfs"),
    ] = Field(default="block", description="A disk, or a shared file system.")
    sharing: Annotated[
        Literal["auto", "single", "nfs", "native"], choice("auto", "single", "nfs", "native")
    ] = Field(default="auto", description="How several nodes use it; `auto`: rank 0 exports a disk by NFS.")
    disk_type: Text | None = Field(default=None, description="The backend's kind of disk.")
    iops: Annotated[int | None, whole(1)] = Field(default=None, description="Operations per second.")
    throughput: Annotated[int | None, whole(1)] = Field(default=None, description="MB/s.")
    kms_key: Text | None = Field(default=None, description="Key it is encrypted with.")
    protect: Flag = Field(default=True, description="Refuse to replace it; deleting asks for its name.")
