"""`type: dev-environment`: a container to work in."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.fields.types import Commands, Text, choice, duration
from orch.spec.models.run import Run


class DevEnvironment(Run):
    """A container, or a small cluster of them, held until you stop it."""

    noun: ClassVar[str] = "a dev environment"

    type: Literal["dev-environment"] = Field(default="dev-environment", description="`dev-environment`.")
    ide: Annotated[
        Literal["vscode", "cursor", "windsurf", "zed"] | None, choice("vscode", "cursor", "windsurf", "zed")
    ] = Field(default=None, description="A desktop link is printed for it; SSH works without.")
    version: Text | None = Field(default=None, description="Of the IDE; `version@commit` for windsurf.")
    init: Commands = Field(default=(), description="Commands at the start.")
    inactivity_duration_s: Annotated[int | None, duration()] = Field(
        default=None,
        validation_alias="inactivity_duration",
        description="Stop when nobody was connected for this long.",
    )
