"""Settings of the backend `gcp`: Google Compute Engine."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.models.backends.base import CLOUD_SUPPORTS, CloudSettings
from orch.spec.models.backends.credentials import GcpCreds
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import Flag, Names, Text, choice


class GcpSettings(CloudSettings):
    """Google Compute Engine."""

    noun: ClassVar[str] = "the backend `gcp`"
    title: ClassVar[str] = "GCP"
    provisioned: ClassVar[bool] = True
    supports: ClassVar[frozenset[str]] = CLOUD_SUPPORTS | {
        "backend_options",
        "idle_duration",
        "ttl",
        "network.name",
        "network.extra_vpcs",
        "network.roce_vpcs",
    }

    type: Annotated[Literal["gcp"], choice("gcp")] = Field(default="gcp", description="`gcp`.")
    creds: GcpCreds = Field(default=None, description="The SDK's own chain if not given.")
    project_id: Text | None = Field(
        default=None, description="Project; that of the credentials if not given."
    )
    vpc_name: Text | None = Field(default=None, description="Network of the first interface.")
    extra_vpcs: Names = Field(default=(), description="Networks of further interfaces.")
    roce_vpcs: Annotated[
        tuple[str, ...], Reads(lambda value: _one("roce_vpcs", value), json_schema.TEXTS)
    ] = Field(default=(), description="Network of the RDMA interfaces, one at most.")
    vpc_project_id: Text | None = Field(default=None, description="Project that shares its networks.")
    nat_check: Flag = Field(default=True, description="Check that private nodes reach the internet.")
    vm_service_account: Text | None = Field(default=None, description="Account of the instances.")
    preview_features: Names = Field(default=(), description="Later: features to switch on.")


def _one(what: str, value: object) -> object:
    from orch.spec.grammar.values import Problem
    from orch.spec.models.fields.types import names_of

    read = cast("tuple[str, ...]", names_of("networks").read(value))
    if len(read) > 1:
        raise Problem("ORCH117", f"`{what}` takes one network", hint="keep one of them", at=(1,))
    return read
