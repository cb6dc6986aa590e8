"""Settings of the backend `runpod`: RunPod."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CloudSettings
from orch.spec.models.backends.credentials import ApiKeyCreds
from orch.spec.models.fields.types import Flag, choice


class RunpodSettings(CloudSettings):
    """RunPod."""

    noun: ClassVar[str] = "the backend `runpod`"
    title: ClassVar[str] = "RunPod"

    type: Annotated[Literal["runpod"], choice("runpod")] = Field(default="runpod", description="`runpod`.")
    creds: ApiKeyCreds = Field(default=None, description="API key.")
    community_cloud: Flag = Field(default=False, description="Offer machines of the community too.")
