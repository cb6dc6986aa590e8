"""Bodies of requests, as the published schema has them: a field that RunPod does not know is refused.

Source: runpod/docs api-reference-v2/openapi.json, schemas Create…Request and Update…Request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from orch.rehearsal.http_service import B, Body, validated
from orch.rehearsal.runpod.api.errors import RunpodError
from orch.rehearsal.store import Doc

Name = Annotated[str, StringConstraints(min_length=1)]
Version = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+$")]


class PersistentMount(Body):
    size: int = Field(ge=10)
    path: str


class NetworkMount(Body):
    volumeId: str
    path: str


class Mounts(Body):
    persistent: PersistentMount | None = None
    network: list[NetworkMount] | None = Field(default=None, max_length=1)


class _Container(Body):
    image: str | None = None
    args: str = ""
    disk: int = Field(default=50, ge=1)
    env: dict[str, str] = Field(default_factory=dict)
    ports: list[str] = Field(default_factory=list)
    mounts: Mounts = Field(default_factory=Mounts)
    dataCenterIds: list[str] = Field(default_factory=list)
    startSsh: bool = False
    startJupyter: bool = False


class GpuRequest(Body):
    id: str
    count: int = Field(default=1, ge=1)
    allowedCudaVersions: list[Version] | None = None
    minCudaVersion: Version | None = None
    minRamPerGpu: int | None = Field(default=None, ge=1)
    minVcpuCountPerGpu: int | None = Field(default=None, ge=1)


class CpuRequest(Body):
    id: Name
    vcpuCount: int = Field(ge=2)


class CreatePod(_Container):
    name: Name
    gpu: GpuRequest | None = None
    cpu: CpuRequest | None = None
    cloud: Literal["SECURE", "COMMUNITY"] = "SECURE"
    globalNetworking: bool = False
    registry: str | None = None
    templateId: Name | None = None


class ClusterCompute(Body):
    gpuTypeId: Name
    gpuCountPerPod: int = Field(ge=1)
    podCount: int = Field(ge=2, le=250)


class CreateCluster(_Container):
    """There is no `registry`: clusters pull no private images."""

    name: Name
    type: Literal["APPLICATION", "TRAINING", "SLURM", "RAY"]
    compute: ClusterCompute


class Rename(Body):
    name: Name


class CreateVolume(Body):
    name: Name
    size: int = Field(ge=10, le=4096)
    dataCenter: Name
    type: Literal["STANDARD", "HIGH_PERFORMANCE"] | None = None


class UpdateVolume(Body):
    name: Name | None = None
    size: int | None = Field(default=None, ge=10, le=4096)


def checked(model: type[B], body: Any) -> B:
    """A body that has the form of its schema. Raises RunpodError."""
    return validated(
        model, body, lambda lines: RunpodError(422, "Request validation failed.", errors=lines), root=("$",)
    )


def checked_container(body: _Container, volume_of: Callable[[str], Doc | None]) -> Doc | None:
    """The network volume of a body's mounts, if any. Raises RunpodError for what the schema does not say."""
    if body.mounts.persistent is not None and body.mounts.network:
        raise RunpodError(400, "mounts.persistent and mounts.network are mutually exclusive")
    if body.mounts.network is not None and not body.mounts.network:
        raise RunpodError(400, "mounts.network must not be empty")
    if not body.mounts.network:
        return None
    volume = volume_of(body.mounts.network[0].volumeId)
    if volume is None:
        raise RunpodError(404, "network volume not found")
    if body.dataCenterIds and volume["dataCenter"] not in body.dataCenterIds:
        raise RunpodError(400, f"network volume is in {volume['dataCenter']}, the deployment is not")
    return volume
