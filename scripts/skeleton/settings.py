"""Settings of the backend `newcloud`: Newcloud."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CLOUD_SUPPORTS, CloudSettings
from orch.spec.models.backends.credentials import ApiKeyCreds
from orch.spec.models.fields.types import choice

_NO_ZONES = "Newcloud's regions have no zones: name `regions`"
_NO_TAGS = "Newcloud has no tags: names of its machines tell the fleet"


class NewcloudSettings(CloudSettings):
    """Newcloud."""

    noun: ClassVar = "the backend `newcloud`"
    title: ClassVar = "Newcloud"
    provisioned: ClassVar = False
    supports: ClassVar = CLOUD_SUPPORTS - {
        "availability_zones",
        "zones",
        "zone",
        "reservation",
        "scratch",
        "scratch.fs",
        "tags",
        "topology",
        "volumes",
    }
    instead: ClassVar = {
        **dict.fromkeys(("availability_zones", "zones", "zone"), _NO_ZONES),
        "tags": _NO_TAGS,
    }
    lacks: ClassVar = {"tags": _NO_TAGS}

    type: Annotated[Literal["newcloud"], choice("newcloud")] = Field(
        default="newcloud", description="`newcloud`."
    )
    creds: ApiKeyCreds = Field(default=None, description="API key; NEWCLOUD_API_KEY if not given.")
