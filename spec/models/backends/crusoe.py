"""Settings of the backend `crusoe`: Crusoe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CLOUD_SUPPORTS, CloudSettings
from orch.spec.models.backends.credentials import CrusoeCreds
from orch.spec.models.fields.types import Text, choice

_NO_ZONES = (
    "Crusoe's locations are regions: name `regions`, or an InfiniBand network with `fabric` of `network`"
)
_NO_TAGS = "Crusoe has no tags: names of its resources tell the fleet"


class CrusoeSettings(CloudSettings):
    """Crusoe."""

    noun: ClassVar[str] = "the backend `crusoe`"
    title: ClassVar[str] = "Crusoe"
    provisioned: ClassVar[bool] = True
    # Its machines have no tags, and locations no zones; local disks are the nodes' own, for images of jobs.
    supports: ClassVar[frozenset[str]] = (
        CLOUD_SUPPORTS - {"availability_zones", "zones", "zone", "scratch", "scratch.fs", "tags", "volumes"}
    ) | {"network.fabric", "idle_duration", "ttl"}
    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("availability_zones", "zones", "zone"), _NO_ZONES),
        **dict.fromkeys(
            ("scratch", "scratch.fs"), "local disks hold the images and the containers of jobs: use those"
        ),
        "tags": _NO_TAGS,
        "network.name": "Crusoe's fleets have a network each; `subnets` gives one that several are in",
    }

    lacks: ClassVar[Mapping[str, str]] = {"tags": _NO_TAGS}

    type: Annotated[Literal["crusoe"], choice("crusoe")] = Field(default="crusoe", description="`crusoe`.")
    creds: CrusoeCreds = Field(default=None, description="Access key.")
    project_id: Text | None = Field(default=None, description="Project; CRUSOE_DEFAULT_PROJECT if not given.")
