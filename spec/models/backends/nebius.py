"""Settings of the backend `nebius`: Nebius."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CloudSettings
from orch.spec.models.backends.credentials import NebiusCreds
from orch.spec.models.fields.types import Names, choice


class NebiusSettings(CloudSettings):
    """Nebius."""

    noun: ClassVar[str] = "the backend `nebius`"
    title: ClassVar[str] = "Nebius"

    type: Annotated[Literal["nebius"], choice("nebius")] = Field(default="nebius", description="`nebius`.")
    creds: NebiusCreds = Field(default=None, description="Service account.")
    projects: Names = Field(default=(), description="Projects to use, one per region.")
    fabrics: Names = Field(default=(), description="InfiniBand fabrics to use.")
