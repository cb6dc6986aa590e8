"""Settings of the backend `azure`: Microsoft Azure."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import ByRegion, CloudSettings
from orch.spec.models.backends.credentials import AzureCreds
from orch.spec.models.fields.types import Text, choice


class AzureSettings(CloudSettings):
    """Microsoft Azure."""

    noun: ClassVar[str] = "the backend `azure`"
    title: ClassVar[str] = "Azure"

    type: Annotated[Literal["azure"], choice("azure")] = Field(default="azure", description="`azure`.")
    creds: AzureCreds = Field(default=None, description="The SDK's own chain if not given.")
    tenant_id: Text = Field(description="Tenant.")
    subscription_id: Text = Field(description="Subscription.")
    resource_group: Text | None = Field(default=None, description="Resource group; one is made if not given.")
    vpc_ids: ByRegion = Field(default={}, description="Networks by region: `group/network`.")
    subnet_ids: ByRegion = Field(default={}, description="Subnets by region: `group/network/subnet`.")
    vm_managed_identity: Text | None = Field(default=None, description="Identity of the instances.")
