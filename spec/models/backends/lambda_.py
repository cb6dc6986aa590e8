"""Settings of the backend `lambda`: Lambda."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CloudSettings
from orch.spec.models.backends.credentials import ApiKeyCreds
from orch.spec.models.fields.types import choice


class LambdaSettings(CloudSettings):
    """Lambda."""

    noun: ClassVar[str] = "the backend `lambda`"
    title: ClassVar[str] = "Lambda"

    type: Annotated[Literal["lambda"], choice("lambda")] = Field(default="lambda", description="`lambda`.")
    creds: ApiKeyCreds = Field(default=None, description="API key.")
