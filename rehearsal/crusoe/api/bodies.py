"""Bodies of requests, as the published schema has them: a field that Crusoe does not know is refused.

Source: crusoecloud/client-go swagger/v1/swagger.json, schemas …PostRequestV1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from orch.rehearsal.crusoe.api.errors import bad_request
from orch.rehearsal.http_service import B, Body, validated

Name = Annotated[str, StringConstraints(min_length=1)]
Ports = Annotated[str, StringConstraints(pattern=r"^\d{1,5}(-\d{1,5})?$")]
Script = Annotated[str, StringConstraints(max_length=64_000)]


class CreateNetwork(Body):
    name: Name
    cidr: Name


class CreateSubnet(Body):
    name: Name
    cidr: Name
    location: Name
    vpc_network_id: Name
    nat_gateway_enabled: bool = False


class RuleObject(Body):
    cidr: str = ""
    resource_id: str = ""


class CreateRule(Body):
    name: Name
    action: Literal["allow", "deny"]
    direction: Literal["ingress", "egress"]
    protocols: list[Name] = Field(min_length=1)
    sources: list[RuleObject] = Field(min_length=1)
    destinations: list[RuleObject] = Field(min_length=1)
    source_ports: list[Ports] = Field(default_factory=list)
    destination_ports: list[Ports] = Field(default_factory=list)
    vpc_network_id: Name


class CreatePartition(Body):
    name: Name
    ib_network_id: Name


class CreateDisk(Body):
    name: Name
    location: Name
    size: Annotated[str, StringConstraints(pattern=r"^\d+(GiB|TiB)$")]
    type: Literal["persistent-ssd", "shared-volume"] = "persistent-ssd"
    block_size: Literal[512, 4096] = 4096
    snapshot_id: str | None = None


class DiskAttachment(Body):
    disk_id: Name
    attachment_type: Literal["os", "data"]
    mode: Literal["read-only", "read-write"]


class PublicAddress(Body):
    type: Literal["static", "dynamic"]


class Address(Body):
    public_ipv4: PublicAddress | None = None


class Interface(Body):
    subnet: Name
    ips: list[Address] = Field(default_factory=list)


class Adapter(Body):
    ib_partition_id: str = ""
    transport_partition_id: str = ""


class Reservation(Body):
    id: str | None = None
    selection_strategy: Literal["lowest_cost", "on_demand"] | None = None


class CreateInstance(Body):
    name: Name
    type: Name
    location: Name
    ssh_public_key: Name
    image: str | None = None
    custom_image: str | None = None
    startup_script: Script = ""
    shutdown_script: Script = ""
    disks: list[DiskAttachment] = Field(default_factory=list)
    network_interfaces: list[Interface] = Field(default_factory=list)
    host_channel_adapters: list[Adapter] = Field(default_factory=list)
    reservation_specification: Reservation | None = None
    nvlink_domain_id: str | None = None
    maintenance_policy: Literal["manual", "stop-vm", "unspecified"] | None = None
    install_crusoe_watch_agent: bool = True
    crusoe_watch_agent_install_mode: Literal["docker", "native"] | None = None


def checked(model: type[B], body: Any) -> B:
    """A body that has the form of its schema. Raises CrusoeError."""
    return validated(model, body, lambda lines: bad_request("; ".join(lines)))
