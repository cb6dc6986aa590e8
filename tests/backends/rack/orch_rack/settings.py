from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.fields.types import Text, choice


class RackSettings(BackendSettings):
    """Machines of a rack."""

    noun: ClassVar[str] = "the backend `rack`"
    title: ClassVar[str] = "Rack"
    provisioned: ClassVar[bool] = True
    supports: ClassVar[frozenset[str]] = frozenset({"regions", "region", "tags"})

    type: Annotated[Literal["rack"], choice("rack")] = Field(default="rack", description="`rack`.")
    room: Text = Field(default="cellar", description="Where the rack stands.")
