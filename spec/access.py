"""Access to nodes: over SSH, or in the way of their backend and its connector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Tag


class Jump(BaseModel, frozen=True, extra="forbid"):
    """One hop on the way to a node, outermost first. `proxy_command` leads to it where TCP does not.

    `ssh_alias`: as in NodeState.
    """

    address: str
    port: int = 22
    user: str
    identity: str | None = None
    host_key: str | None = None
    proxy_command: str | None = None
    ssh_alias: str | None = None


class SshAccess(BaseModel, frozen=True, extra="forbid"):
    """A node that is reached over SSH.

    `identity` is the path of a private key file, `host_key` the public host key as in known_hosts:
    "ssh-ed25519 AAAA…". `ssh_alias`: the name by which the ~/.ssh/config of whoever connects may know a
    ProxyCommand that leads there; the command itself is never recorded.
    """

    kind: Literal["ssh"] = "ssh"
    address: str
    port: int = 22
    user: str
    identity: str | None = None
    host_key: str
    jump: tuple[Jump, ...] = ()
    proxy_command: str | None = None
    ssh_alias: str | None = None

    @property
    def machine(self) -> str:
        """Identity of this machine, which tells it from another one under the same name."""
        return self.host_key

    def located(self, folder: Path) -> SshAccess:
        """The same with the paths of key files made absolute, relative ones from `folder`."""
        hops = tuple(hop.model_copy(update={"identity": resolved(hop.identity, folder)}) for hop in self.jump)
        return self.model_copy(update={"identity": resolved(self.identity, folder), "jump": hops})

    def with_key(self, identity: str) -> SshAccess:
        """The same with the fleet's own key, for jump hosts of ours too: those whose host key we made."""
        hops = tuple(
            hop.model_copy(update={"identity": identity}) if hop.identity is None and hop.host_key else hop
            for hop in self.jump
        )
        return self.model_copy(update={"identity": self.identity or identity, "jump": hops})


KUBERNETES = "kubernetes"
"""The kind of access of pods."""


class OtherAccess(BaseModel):
    """A node that is reached in another way: what its record holds, its backend and its connector know."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: str

    @property
    def machine(self) -> str:
        """Identity of this machine, which tells it from another one under the same name: its whole access
        path."""
        return self.model_dump_json()

    def located(self, folder: Path) -> OtherAccess:
        del folder
        return self

    def with_key(self, identity: str) -> OtherAccess:
        del identity
        return self


def resolved(identity: str | None, folder: Path) -> str | None:
    """Return the path of a key file: `~` expanded, relative to `folder`."""
    return None if identity is None else str(folder.absolute() / Path(identity).expanduser())


def _kind(record: object) -> str:
    kind = record.get("kind", "ssh") if isinstance(record, dict) else getattr(record, "kind", "")  # pyright: ignore
    return "ssh" if kind == "ssh" else "other"


Access = Annotated[
    Annotated[SshAccess, Tag("ssh")] | Annotated[OtherAccess, Tag("other")], Discriminator(_kind)
]


Hop = TypeVar("Hop", SshAccess, Jump)
