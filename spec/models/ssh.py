"""`ssh_config`: hosts that exist already, and the way to them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar import hosts as addresses
from orch.spec.grammar.values import Problem
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section, describe, plain
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Misread, Path, Reads, read_as
from orch.spec.models.fields.sizes import Blocks
from orch.spec.models.fields.types import (
    Env,
    LocalPath,
    Name,
    Tags,
    Text,
    User,
    choice,
    duration,
    reader,
    whole,
)

PortNumber = Annotated[int, whole(1, 65_535)]
Address = Annotated[str, reader(addresses.check_host, json_schema.pattern("host", r"[^\s@]+"))]


class Jump(Section):
    """One hop on the way to a host."""

    noun: ClassVar[str] = "`proxy_jump`"

    hostname: Annotated[str, reader(addresses.check_hop, json_schema.pattern("host", r"[^\s@]+"))] = Field(
        description="Its name or address."
    )
    user: User | None = Field(default=None, description="Yours, if not given.")
    port: PortNumber = Field(default=22, description="Port of its SSH server.")
    identity_file: LocalPath | None = Field(
        default=None, description="Private key; the SSH agent's, if not given."
    )

    @classmethod
    def form(cls) -> str:
        return "write `{hostname: login.example.com, user: ubuntu}`"


def _each(model: type[Section], items: list[object]) -> tuple[Section, ...]:
    """Every item of a list as a block; what is wrong with any of them is told at once."""
    blocks: list[Section] = []
    errors: list[tuple[Path, type[Section], object]] = []
    for index, item in enumerate(items):
        try:
            blocks.append(read_as(model, item, (index,)))
        except Misread as error:
            errors += error.parts
    if errors:
        raise Misread(errors)  # type: ignore[arg-type]
    return tuple(blocks)


def _jumps(value: object) -> tuple[Section, ...]:
    """One hop, or several from the outside in."""
    if not isinstance(value, (list, tuple)):
        return (read_as(Jump, value),)
    return _each(Jump, cast("list[object]", value))


def _written_jumps(jumps: object) -> object:
    read = [plain(jump) for jump in cast("tuple[Jump, ...]", jumps)]
    return read[0] if len(read) == 1 else read


class _JumpForm(Reads):
    """One mapping, or a list of them."""

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> Form:
        rows = super().__get_pydantic_json_schema__(schema, handler)  # type: ignore[arg-type]
        return {"anyOf": [rows["items"], rows]}


Jumps = Annotated[tuple[Jump, ...], _JumpForm(_jumps, write=_written_jumps)]


class Host(Section):
    """A host, or several under folded names: `gpu[01-10].lan`."""

    noun: ClassVar[str] = "a host"
    short: ClassVar[tuple[Form, ...]] = (json_schema.pattern("[user@]host[:port]", r"\S+"),)

    hostname: Address = Field(description="Name or address; folded names stand for several hosts.")
    port: PortNumber | None = Field(default=None, description="Instead of `ssh_config.port`.")
    user: User | None = Field(default=None, description="Instead of `ssh_config.user`.")
    identity_file: LocalPath | None = Field(
        default=None, description="Instead of `ssh_config.identity_file`."
    )
    proxy_jump: Jumps | None = Field(default=None, description="Instead of `ssh_config.proxy_jump`.")
    internal_ip: Annotated[
        str | None, reader(addresses.parse_private_address, json_schema.pattern("address", "[0-9A-Fa-f:.]+"))
    ] = Field(default=None, description="Address in the network the hosts share; on all hosts or none.")
    blocks: Blocks = Field(default=1, description="Jobs that may share this host.")
    name: Name | None = Field(default=None, description="What tables call it.")
    host_key: Text | None = Field(default=None, description="Its public SSH key, for `known_hosts: strict`.")
    rack: Text | None = Field(default=None, description="Hosts of one rack get neighbouring ranks.")
    env: Env = Field(default={}, description="Variables of jobs on this host.")
    tags: Tags = Field(default={}, description="Tags of this host.")

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            address = addresses.parse_address(data)
            parts = {"hostname": address.host, "user": address.user, "port": address.port}
            return {key: value for key, value in parts.items() if value is not None}
        return data

    @classmethod
    def form(cls) -> str:
        return "write `user@host:port`, or a mapping with `hostname`"

    @property
    def hostnames(self) -> tuple[str, ...]:
        """Folded names unfolded."""
        return addresses.unfold(self.hostname)


def _hosts(value: object) -> tuple[Section, ...]:
    if not isinstance(value, (list, tuple)):
        hint = f"write `[{value}]`" if isinstance(value, str) else "begin each with a dash"
        raise Problem("ORCH112", f"a list of hosts is expected, this is {describe(value)}", hint=hint)
    return _each(Host, cast("list[object]", value))


class SshConfig(Section):
    """Hosts taken into the fleet as they are. What stands here holds for all of them; a host's own wins."""

    noun: ClassVar[str] = "`ssh_config`"

    hosts: Annotated[tuple[Host, ...], Reads(_hosts)] = Field(
        description="`host`, `user@host:port`, folded names `gpu[01-10].lan`, or mappings."
    )
    user: User | None = Field(default=None, description="Yours, if not given.")
    port: PortNumber = Field(default=22, description="Port of the SSH servers.")
    identity_file: LocalPath | None = Field(
        default=None, description="Private key; the SSH agent's, if not given."
    )
    proxy_jump: Jumps | None = Field(default=None, description="Way to the hosts: one hop, or a list.")
    network: Annotated[str | None, reader(addresses.parse_private_network, json_schema.CIDR)] = Field(
        default=None, description="Private network the hosts share; found out if not given."
    )
    known_hosts: Annotated[Literal["accept-new", "strict"], choice("accept-new", "strict")] = Field(
        default="accept-new",
        description="Keys in `host_key` or your known_hosts file count. `accept-new`: a person may accept "
        "others, when `up` asks or with `--accept-new-host-keys`; `strict`: nobody.",
    )
    connect_timeout_s: Annotated[int, duration(10, never=False, low=1)] = Field(
        default=10, validation_alias="connect_timeout", description="For each connection."
    )
    parallel: Annotated[int, whole(1, 1024)] = Field(default=64, description="Hosts worked on at once.")
    preflight: Annotated[Literal["strict", "warn", "off"], choice("strict", "warn", "off")] = Field(
        default="strict", description="What a failed check of a host does."
    )

    @classmethod
    def form(cls) -> str:
        return "write `hosts: [10.0.0.4, 10.0.0.5]` below it"

    def machines(self) -> tuple[Host, ...]:
        """Every single host, folded names unfolded, with what it inherits from here."""
        inherited = {"user": self.user, "port": self.port, "identity_file": self.identity_file}
        inherited["proxy_jump"] = self.proxy_jump  # type: ignore[assignment]
        return tuple(
            host.model_copy(
                update={
                    "hostname": name,
                    **{key: value for key, value in inherited.items() if getattr(host, key) is None},
                }
            )
            for host in self.hosts
            for name in host.hostnames
        )
