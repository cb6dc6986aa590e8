"""Bodies of requests, as the published schema has them: a field that Lambda does not know is refused.

Source: Lambda Cloud API 1.10, schemas …Request.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

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


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Image(_Body):
    id: str | None = None
    family: str | None = None


class Mount(_Body):
    file_system_id: str
    mount_point: MountPoint


class Tag(_Body):
    key: TagKey
    value: Annotated[str, StringConstraints(max_length=128)]


class Ruleset(_Body):
    id: str


class Launch(_Body):
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


class Terminate(_Body):
    instance_ids: list[str] = Field(min_length=1)


class CreateKey(_Body):
    name: Name
    public_key: str | None = None


class CreateFileSystem(_Body):
    name: FileSystemName
    region: str


class FirewallRule(_Body):
    protocol: Literal["tcp", "udp", "icmp", "all"]
    port_range: Annotated[list[Annotated[int, Field(ge=1, le=65535)]], Field(min_length=2, max_length=2)] | (
        None
    ) = None
    source_network: Source
    description: Annotated[str, StringConstraints(max_length=128)]


class PutRules(_Body):
    data: list[FirewallRule]


B = TypeVar("B", bound=_Body)


def checked(model: type[B], body: Any) -> B:
    """A body that has the form of its schema. Raises LambdaError."""
    try:
        return model.model_validate(body if isinstance(body, dict) else {})
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
        raise invalid("; ".join(lines)) from None
