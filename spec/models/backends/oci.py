"""Settings of the backend `oci`: Oracle Cloud Infrastructure."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CloudSettings
from orch.spec.models.backends.credentials import OciCreds
from orch.spec.models.fields.types import Text, choice


class OciSettings(CloudSettings):
    """Oracle Cloud Infrastructure."""

    noun: ClassVar[str] = "the backend `oci`"
    title: ClassVar[str] = "OCI"

    type: Annotated[Literal["oci"], choice("oci")] = Field(default="oci", description="`oci`.")
    creds: OciCreds = Field(default=None, description="The SDK's own chain if not given.")
    compartment_id: Text | None = Field(default=None, description="Compartment; one is made if not given.")
