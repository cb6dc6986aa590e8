"""Settings of the backend `lambda`: Lambda."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CLOUD_SUPPORTS, CloudSettings
from orch.spec.models.backends.credentials import ApiKeyCreds
from orch.spec.models.fields.types import choice

_NO_ZONES = "Lambda's regions have no zones: name `regions`"
_NO_NETWORKS = "Lambda has no networks of yours: instances of a region share one"


class LambdaSettings(CloudSettings):
    """Lambda."""

    noun: ClassVar[str] = "the backend `lambda`"
    title: ClassVar[str] = "Lambda"
    provisioned: ClassVar[bool] = True
    # Single instances, of which nothing tells where they stand; each has one disk of its own.
    supports: ClassVar[frozenset[str]] = (
        CLOUD_SUPPORTS
        - {
            "availability_zones",
            "zones",
            "zone",
            "reservation",
            "scratch",
            "scratch.fs",
            "topology",
            "volumes",
        }
    ) | {"backend_options"}
    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("availability_zones", "zones", "zone"), _NO_ZONES),
        **dict.fromkeys(("network.name", "network.extra_vpcs", "network.roce_vpcs"), _NO_NETWORKS),
        "network.fabric": "Lambda names no fabrics",
        "reservation": "what is reserved at Lambda is a 1-Click Cluster: "
        "`backend_options: [{type: lambda, cluster: NAME}]` takes it in",
        "scratch": "instances have one disk, which holds the images and the containers of jobs too",
        "scratch.fs": "instances have one disk, which holds the images and the containers of jobs too",
        "topology": "Lambda does not tell where its instances stand",
    }

    type: Annotated[Literal["lambda"], choice("lambda")] = Field(default="lambda", description="`lambda`.")
    creds: ApiKeyCreds = Field(default=None, description="API key; LAMBDA_API_KEY if not given.")
