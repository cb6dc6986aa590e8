"""Settings of the backend `runpod`: RunPod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CLOUD_SUPPORTS, OF_CLAIMS, CloudSettings
from orch.spec.models.backends.credentials import ApiKeyCreds
from orch.spec.models.fields.types import Flag, choice

_NO_HOST = "a pod has no machine of yours under it: put it into the job's image, or its `commands`"
_NO_LABELS = "RunPod has no labels"


class RunpodSettings(CloudSettings):
    """RunPod."""

    noun: ClassVar[str] = "the backend `runpod`"
    title: ClassVar[str] = "RunPod"
    provisioned: ClassVar[bool] = True
    made_with_runs: ClassVar[bool] = True
    # Nodes are containers, made by a call that knows neither disks nor labels, and bought by the hour alone.
    supports: ClassVar[frozenset[str]] = CLOUD_SUPPORTS - {
        "reservation",
        "tags",
        "os_image",
        "init",
        "mounts",
        "nodes.spare",
        "scratch",
        "scratch.fs",
        "topology",
    }
    # A pod mounts its volume for writing, and RunPod says nothing of how fast it is, or encrypted with what.
    volumes_lack: ClassVar[tuple[str, ...]] = (
        *OF_CLAIMS,
        "iops",
        "throughput",
        "kms_key",
        "tags",
        "read_only",
    )
    volumes_shared: ClassVar[bool] = True
    instead: ClassVar[Mapping[str, str]] = {
        "reservation": "RunPod has none",
        "tags": _NO_LABELS,
        "os_image": "the job's `image` is all there is",
        "init": _NO_HOST,
        "nodes.spare": "pods are made with a run and go with it: its next attempt gets new ones",
        "mounts": "a pod mounts no file systems: let the job bring its data, or keep it by `outputs`",
        "scratch": "the disk of the pod is all there is: `resources: {disk: …}`",
        "scratch.fs": "the disk of the pod is all there is: `resources: {disk: …}`",
        "topology": "RunPod does not tell where its machines stand",
        "ttl": "pods go with their run; `max_duration` of the task ends that",
        "network.name": "RunPod has no networks of yours",
        "network.fabric": "RunPod names no fabrics",
        "network.extra_vpcs": "RunPod has no networks of yours",
        "network.roce_vpcs": "RunPod has no networks of yours",
    }

    lacks: ClassVar[Mapping[str, str]] = {
        "tags": _NO_LABELS,
        "ssh_cidrs": "RunPod lets everybody reach a port that is open; SSH takes the fleet's key alone",
        "public_ips": "a pod is reached by a port of an address of RunPod's: there is nothing to choose",
    }

    type: Annotated[Literal["runpod"], choice("runpod")] = Field(default="runpod", description="`runpod`.")
    creds: ApiKeyCreds = Field(default=None, description="API key.")
    community_cloud: Flag = Field(default=False, description="Offer machines of the community too.")
