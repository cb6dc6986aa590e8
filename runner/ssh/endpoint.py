"""Whom to log in to: nodes and jump hosts alike, and what their host keys must be."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Literal

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from orch.runner.errors import HostKeyRefused
from orch.runner.node_api.connector import Address
from orch.spec.access import Jump
from orch.spec.state import NodeState


@dataclass(frozen=True)
class SshEndpoint:
    """Whom to log in to and by which way, for nodes and jump hosts alike."""

    kind: Literal["node", "jump host"]
    name: str
    address: str
    port: int
    user: str
    identity: str | None
    host_key: str | None
    jump: tuple[Jump, ...] = ()
    proxy_command: str | None = None
    ssh_alias: str | None = None

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def where(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    @property
    def known_as(self) -> str:
        return known_as(self.address, self.port)


def of_node(node: NodeState) -> SshEndpoint:
    access = node.ssh
    return SshEndpoint(
        "node",
        node.name,
        access.address,
        access.port,
        access.user,
        access.identity,
        access.host_key or None,
        access.jump,
        access.proxy_command,
        access.ssh_alias,
    )


def of_jump(chain: tuple[Jump, ...]) -> SshEndpoint:
    """The last hop of a chain, reached through those before it."""
    *hops, last = chain
    return SshEndpoint(
        "jump host",
        last.address,
        last.address,
        last.port,
        last.user,
        last.identity,
        last.host_key,
        tuple(hops),
        last.proxy_command,
        last.ssh_alias,
    )


def describe_address(node: NodeState) -> Address:
    """How a node is reached, for people."""
    access = node.ssh
    hops = [f"{hop.user}@{hop.address}" + (f":{hop.port}" if hop.port != 22 else "") for hop in access.jump]
    own = f"ProxyCommand of your {access.ssh_alias}" if access.ssh_alias else None
    command = access.proxy_command or own
    return Address(
        place=access.address if access.port == 22 else f"{access.address}:{access.port}",
        user=access.user,
        hops=" > ".join([*hops, *([command] if command else [])]) or "-",
        key=fingerprint(access.host_key),
        whole=of_node(node).where,
        host=access.address,
        port=access.port,
        direct=not (hops or command),
    )


def fingerprint(public: str) -> str:
    """`SHA256:…` of a public key, as OpenSSH writes it; `-` for what is no key."""
    try:
        digest = hashlib.sha256(base64.b64decode(public.split()[1], validate=True)).digest()
    except (ValueError, IndexError):
        return "-"
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def known_as(address: str, port: int) -> str:
    """A server's name in known_hosts files."""
    return address if port == 22 else f"[{address}]:{port}"


def read_host_key(peer: SshEndpoint) -> paramiko.PKey:
    """The pinned key of a peer. Raises HostKeyRefused when that text is none."""
    try:
        entry = HostKeyEntry.from_line(f"{peer.known_as} {peer.host_key}")
    except (InvalidHostKey, paramiko.SSHException, binascii.Error, ValueError, IndexError):
        entry = None
    if entry is None or entry.key is None:
        raise HostKeyRefused(
            f"the pinned host key of {peer.label} is not a key",
            where=peer.where,
            hint="a public key as in known_hosts: `ssh-ed25519 AAAA…`",
            code="ORCH363",
        )
    return entry.key


def changed_key(
    peer: SshEndpoint, expected: paramiko.PKey | None, offered: paramiko.PKey | None
) -> HostKeyRefused:
    """The error for a host that shows another key than the expected one, or of which none is known."""
    if expected is None:
        return HostKeyRefused(
            f"no host key is known for {peer.label}",
            where=peer.where,
            hint="pin it with `host_key`, or connect once with ssh and accept it",
            code="ORCH363",
        )
    offered_text = f"{offered.get_name()} {offered.fingerprint}" if offered else "a key of another type"
    return HostKeyRefused(
        f"the host key of {peer.label} is not the pinned one",
        where=peer.where,
        detail=f"expected {expected.get_name()} {expected.fingerprint}, offered {offered_text}",
        hint="another machine may answer at this address; if the change is meant: "
        f"`orch up FILE --accept-host-key {peer.name}`",
        code="ORCH363",
    )
