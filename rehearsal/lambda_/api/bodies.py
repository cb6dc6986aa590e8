"""Bodies of requests, as the published schema has them: a field that Lambda does not know is refused.

Source: Lambda Cloud API 1.10, schemas …Request.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from orch.rehearsal.http_service import B, Body, validated
from orch.rehearsal.lambda_.api.errors import invalid

Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
FileSystemName = Annotated[
    str, StringConstraints(min_length=1, max_length=60, pattern=r"^[a-zA-Z]+[0-9a-zA-Z-]*$")
]
MountPoint = Annotated[
    str, StringConstraints(max_length=256, pattern=r"^(/home|/lambda/nfs|/data)[//a-zA-Z0-9-]*$")
]
TagKey = Annotated[str, StringConstraints(max_length=55, pattern=r"^[a-z][a-z0-9:-]+$")]
Source = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+\.\d+(/\d+)?$")]


class Image(Body):
    id: str | None = None
    family: str | None = None


class Mount(Body):
    file_system_id: str
    mount_point: MountPoint


class Tag(Body):
    key: TagKey
    value: Annotated[str, StringConstraints(max_length=128)]


class Ruleset(Body):
    id: str


class Launch(Body):
    region_name: str
    instance_type_name: str
    ssh_key_names: list[str] = Field(min_length=1, max_length=1)
    file_system_names: list[str] = Field(default_factory=list)
    file_system_mounts: list[Mount] = Field(default_factory=list)
    hostname: str | None = None
    name: Name | None = None
    image: Image | None = None
    user_data: Annotated[str, StringConstraints(max_length=1_000_000)] = ""
    tags: list[Tag] = Field(default_factory=list)
    firewall_rulesets: list[Ruleset] = Field(default_factory=list)


class Terminate(Body):
    instance_ids: list[str] = Field(min_length=1)


class CreateKey(Body):
    name: Name
    public_key: str | None = None


class CreateFileSystem(Body):
    name: FileSystemName
    region: str


class FirewallRule(Body):
    protocol: Literal["tcp", "udp", "icmp", "all"]
    port_range: Annotated[list[Annotated[int, Field(ge=1, le=65535)]], Field(min_length=2, max_length=2)] | (
        None
    ) = None
    source_network: Source
    description: Annotated[str, StringConstraints(max_length=128)]


class PutRules(Body):
    data: list[FirewallRule]


def checked(model: type[B], body: Any) -> B:
    """A body that has the form of its schema. Raises LambdaError."""
    return validated(model, body, lambda lines: invalid("; ".join(lines)))
