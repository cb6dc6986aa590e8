"""Addresses of existing hosts: `user@host:port`, folded names `gpu[01-10].lan`, private networks."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from orch.spec.grammar.characters import check_line
from orch.spec.grammar.values import Problem, parse_int, shown

MAX_FOLDED = 4096
_CARRIER_GRADE = ipaddress.ip_network("100.64.0.0/10")
_PRIVATE = (
    ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_network("172.16.0.0/12"),
    ipaddress.ip_network("192.168.0.0/16"),
    ipaddress.ip_network("fc00::/7"),
    _CARRIER_GRADE,
)
# No shell and no line of an SSH configuration takes it for more than a name. useradd allows a `$` at the end.
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+-]{0,254}\$?")
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,15}")  # the name of an interface; Linux takes 15 characters
_FOLDABLE = re.compile(r"[^][{}(),!&^@%*/\s]+")
_FOLD = re.compile(r"\[([0-9][0-9,/-]*)\]")


@dataclass(frozen=True)
class HostAddress:
    """`user@host:port` as written; `host` may be folded names (`gpu[1-4]`)."""

    host: str
    user: str | None = None
    port: int | None = None


def parse_address(text: str) -> HostAddress:
    """`host`, `user@host`, `host:22`, `user@[fd00::1]:22`. Raises Problem ORCH139."""
    if text.startswith("ssh://"):
        raise Problem("ORCH139", "an address has no `ssh://`", hint=f"write `{text[6:].rstrip('/')}`")
    user, at, rest = text.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise Problem("ORCH139", f"{shown(user)} is not the name of a user", hint="write `user@host`")
    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.%A-Za-z]*:[^\]]*)\](?::(.*))?", rest)
    if bracketed:
        host, port = bracketed.group(1), bracketed.group(2)
    elif rest.count(":") > 1:
        host, port = rest, None
    else:
        host, colon, after = rest.partition(":")
        port = after if colon else None
    number = None if port is None else parse_int(port, low=1, high=65_535, what="a port")
    return HostAddress(check_host(host), user or None, number)


def parse_public_key(text: str) -> str:
    """A line of authorized_keys without options: `ssh-ed25519 AAAA… comment`. Raises Problem ORCH139."""
    if "PRIVATE KEY" in text:
        raise Problem("ORCH139", "this is a private key", hint="give its public half, and make a new pair")
    line = " ".join(check_line(text.strip()).split())
    kind, _, rest = line.partition(" ")
    encoded = rest.partition(" ")[0]
    try:
        blob = base64.b64decode(encoded, validate=True)
    except ValueError:
        blob = b""
    # The blob says its own type: 4 bytes of length, then the name (RFC 4253, 6.6).
    if len(blob) < 20 or blob[4 : 4 + int.from_bytes(blob[:4], "big")] != kind.encode():
        raise Problem(
            "ORCH139", f"{shown(text)} is not a public key", hint="write the line of the `.pub` file"
        )
    return line


def check_host(text: str) -> str:
    """A host's name, address, or folded names. Raises Problem ORCH139."""
    if ":" in text:
        bare, scoped, zone = text.partition("%")
        try:
            address = str(ipaddress.ip_address(bare))
        except ValueError:
            raise Problem("ORCH139", f"{shown(text)} is not an address", hint="such as `fd00::1`") from None
        if scoped and not _ZONE.fullmatch(zone):
            raise Problem(
                "ORCH139",
                f"{shown(zone)} is not the name of an interface",
                hint="such as `fe80::1%eth0`",
            )
        return f"{address}{scoped}{zone}"
    if re.fullmatch(r"[0-9.]+", text):
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            raise Problem("ORCH139", f"{shown(text)} is not an address", hint="such as `10.0.0.4`") from None
    bare = _FOLD.sub("0", text)
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?\.?", bare):
        raise Problem(
            "ORCH139", f"{shown(text)} is not a host", hint="such as `10.0.0.4`, `node1.lan` or `node[01-16]`"
        )
    folded_size(text)
    return text


def check_hop(text: str) -> str:
    """The name or address of one jump host. Raises Problem ORCH139."""
    if _FOLD.search(text):
        raise Problem(
            "ORCH139",
            f"{shown(text)} stands for several hosts, a hop is one",
            hint="write a list of hops, from the outside in",
        )
    return check_host(text)


def check_user(text: str) -> str:
    """The name of a user on a host. Raises Problem ORCH139.

    It may become part of a ProxyCommand, which a shell reads, and of a line of an SSH configuration.
    """
    if not _USER.fullmatch(text):
        raise Problem(
            "ORCH139",
            f"{shown(text)} is not the name of a user",
            hint="letters, digits and `_.@+-`, such as `ubuntu`",
        )
    return text


def folded_size(text: str) -> int:
    """Return the number of hosts in folded names, without unfolding them. Raises Problem ORCH139."""
    size = 1
    for group in _FOLD.findall(text):
        count = 0
        for part in group.split(","):
            match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([1-9][0-9]{0,3}))?)?", part)
            if not match:
                raise Problem(
                    "ORCH139", f"{shown(f'[{group}]')} is not a list of numbers", hint="such as `[01-16,20]`"
                )
            low = int(match.group(1))
            high = int(match.group(2) or low)
            if high < low:
                raise Problem(
                    "ORCH122", "the range runs backwards", hint=f"write `{match.group(2)}-{match.group(1)}`"
                )
            count += (high - low) // int(match.group(3) or 1) + 1
        size *= count
        if size > MAX_FOLDED:
            raise Problem(
                "ORCH139", f"this stands for more than {MAX_FOLDED} hosts", hint="use several fleets"
            )
    return size


def unfold(text: str) -> tuple[str, ...]:
    """`gpu[01-03].lan` as its three names, in order; any other host alone."""
    if "[" not in text:
        return (text,)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # pyright: ignore[reportMissingTypeStubs]

    return tuple(str(name) for name in cast("Iterable[object]", NodeSet(text, resolver=RESOLVER_NOGROUP)))


def fold(names: Sequence[str]) -> str:
    """`a-0 a-1 a-3` as `a-[0-1,3]`.

    Names with characters of that notation are appended unfolded: names may come from other people, and
    `a[1-99999999999]` would be expanded.
    """
    foldable = [name for name in names if _FOLDABLE.fullmatch(name)]
    folded: list[str] = []
    if foldable:
        from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # pyright: ignore[reportMissingTypeStubs]

        nodes = NodeSet.fromlist(foldable, resolver=RESOLVER_NOGROUP)  # pyright: ignore[reportUnknownMemberType]
        folded = [str(nodes)]
    return ",".join([*folded, *dict.fromkeys(name for name in names if not _FOLDABLE.fullmatch(name))])


def is_private(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    """RFC 1918, unique local addresses, and 100.64.0.0/10."""
    return any(
        network.version == known.version and network.subnet_of(known)  # type: ignore[arg-type]
        for known in _PRIVATE
    )


def parse_network(text: str) -> str:
    """A network in canonical form; host bits are ignored. Raises Problem ORCH139."""
    try:
        if "%" in text:  # a network has no zone, and whatever text stood there would be kept
            raise ValueError(text)
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise Problem("ORCH139", f"{shown(text)} is not a network", hint="such as `10.0.0.0/24`") from None


def parse_private_network(text: str) -> str:
    """Raises Problem ORCH146 for a network that is not private."""
    network = parse_network(text)
    if not is_private(ipaddress.ip_network(network)):
        raise Problem(
            "ORCH146",
            f"{shown(text)} is not a private network",
            hint="give the range the nodes share, such as `10.0.0.0/24`",
        )
    return network


def parse_private_address(text: str) -> str:
    """The address of a host in the network it shares with others. Raises Problem ORCH139, ORCH146."""
    try:
        if "%" in text:
            raise ValueError(text)
        address = ipaddress.ip_address(text)
    except ValueError:
        raise Problem("ORCH139", f"{shown(text)} is not an address", hint="such as `10.0.0.4`") from None
    if not is_private(ipaddress.ip_network(address)):
        raise Problem(
            "ORCH146",
            f"{shown(text)} is not a private address",
            hint="give the address in the network that the hosts share",
        )
    return str(address)
