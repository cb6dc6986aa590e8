"""Settings of the backend `crusoe`: Crusoe."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CloudSettings
from orch.spec.models.backends.credentials import CrusoeCreds
from orch.spec.models.fields.types import Text, choice


class CrusoeSettings(CloudSettings):
    """Crusoe."""

    noun: ClassVar[str] = "the backend `crusoe`"
    title: ClassVar[str] = "Crusoe"

    type: Annotated[Literal["crusoe"], choice("crusoe")] = Field(default="crusoe", description="`crusoe`.")
    creds: CrusoeCreds = Field(default=None, description="Access key.")
    project_id: Text = Field(description="Project.")
