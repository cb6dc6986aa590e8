"""Network interfaces and RDMA ports, from what the facts script prints of /sys and `ip`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from orch.runner.hosts.host_facts import Interface, RdmaPort


@dataclass
class _Link:
    """An interface as /sys has it."""

    mtu: int
    speed: int
    kinds: frozenset[str]
    rdma: tuple[str, ...]
    lower: tuple[str, ...]
    addresses: list[str] = field(default_factory=list)


def interfaces(text: str) -> tuple[tuple[Interface, ...], bool, tuple[str, ...]]:
    """The interfaces by name, whether their addresses could be told, and what stood for one and is none."""
    found: dict[str, _Link] = {}
    odd: list[str] = []
    told = True
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["if"] and len(words) == 7:
            found[words[1]] = _Link(
                _int(words[2]), _int(words[3]), frozenset(_list(words[4])), _list(words[5]), _list(words[6])
            )
        elif words[:1] == ["addr"] and len(words) == 3 and words[1] in found and "/" in words[2]:
            # A peer's address (point to point) follows the own one and is left out by the script.
            if _is_address(words[2]):
                found[words[1]].addresses.append(words[2])
            else:
                odd.append(words[2])
        elif words == ["noip"]:
            told = False
    return tuple(_interface(name, found) for name in sorted(found)), told, tuple(odd)


def _is_address(text: str) -> bool:
    try:
        return "%" not in text and bool(ipaddress.ip_interface(text))
    except ValueError:
        return False


def _interface(name: str, links: Mapping[str, _Link]) -> Interface:
    link = links[name]
    below = [name, *_below(name, links)]
    speeds = [links[each].speed for each in below if links[each].speed > 0]
    return Interface(
        name=name,
        kind=_kind(name, links),
        mtu=link.mtu,
        # A bond tells the sum of its links itself; a bridge or VLAN is as fast as what it is built on.
        speed_mbps=link.speed if link.speed > 0 else max(speeds, default=None),
        addresses=tuple(link.addresses),
        rdma=tuple(dict.fromkeys(device for each in below for device in links[each].rdma)),
    )


def _kind(name: str, links: Mapping[str, _Link]) -> Literal["physical", "bridge", "virtual", "loopback"]:
    if "loopback" in links[name].kinds:
        return "loopback"
    if "device" in links[name].kinds or any("device" in links[each].kinds for each in _below(name, links)):
        return "physical"
    return "bridge" if "bridge" in links[name].kinds else "virtual"


def _below(name: str, links: Mapping[str, _Link]) -> tuple[str, ...]:
    """What an interface is built on, all the way down."""
    found: dict[str, None] = {}
    waiting = list(links[name].lower)
    while waiting:
        each = waiting.pop()
        if each in links and each not in found and each != name:
            found[each] = None
            waiting += links[each].lower
    return tuple(found)


def rdma(text: str) -> tuple[tuple[RdmaPort, ...], bool]:
    """The ports of RDMA devices, and whether programs can open them (/dev/infiniband)."""
    ports: list[RdmaPort] = []
    for line in text.splitlines():
        match = re.fullmatch(r"port (\S+) ([0-9]{1,9}) \| (?:\d+: )?(.*?) \| (.*?) \| (.*)", line)
        if match:
            device, port, state, layer, rate = (part.strip() for part in match.groups())
            ports.append(RdmaPort(device=device, port=int(port), state=state, layer=layer, rate=rate))
    return tuple(ports), "files" in text.splitlines()


def _list(word: str) -> tuple[str, ...]:
    """`a,b:` as its parts: the colon keeps an empty list a word of its own."""
    return tuple(part for part in word.removesuffix(":").split(",") if part)


def _int(word: str) -> int:
    return int(word) if re.fullmatch(r"-?[0-9]{1,18}", word) else -1
