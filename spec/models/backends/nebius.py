"""Settings of the backend `nebius`: Nebius."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CLOUD_SUPPORTS, CloudSettings
from orch.spec.models.backends.credentials import NebiusCreds
from orch.spec.models.fields.types import Names, choice

_NO_ZONES = "Nebius has no zones: name `regions`, or a `fabric` of `network`"


class NebiusSettings(CloudSettings):
    """Nebius."""

    noun: ClassVar[str] = "the backend `nebius`"
    title: ClassVar[str] = "Nebius"
    provisioned: ClassVar[bool] = True
    # Regions have no zones; its machines' own disks and disks of runs are not used yet.
    supports: ClassVar[frozenset[str]] = (
        CLOUD_SUPPORTS - {"availability_zones", "zones", "zone", "scratch", "scratch.fs", "volumes"}
    ) | {"network.fabric", "idle_duration", "ttl"}
    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("availability_zones", "zones", "zone"), _NO_ZONES),
        **dict.fromkeys(
            ("scratch", "scratch.fs"), "the boot disk is all that a machine gets: `resources: {disk: …}`"
        ),
        "volumes": "mount a shared file system by `mounts` of the fleet (`type: nfs`), or keep what a run "
        "makes by `outputs`",
        "network.name": "Nebius's fleets have a network each; `subnets` gives one that several are in",
    }

    type: Annotated[Literal["nebius"], choice("nebius")] = Field(default="nebius", description="`nebius`.")
    creds: NebiusCreds = Field(default=None, description="Service account.")
    projects: Names = Field(default=(), description="Projects to use, one per region.")
    fabrics: Names = Field(default=(), description="InfiniBand fabrics to use.")
