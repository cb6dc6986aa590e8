"""Reads which transport NCCL or RCCL really used from the log that it writes itself (NCCL_DEBUG=INFO).

Pure, and of the standard library of Python 3.9: it goes to the nodes with the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_NAMES = 32

# `Using network AWS Libfabric`
_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$")
# aws-ofi-nccl: `Selected Provider is efa (found 32 nics)`, later `Selected provider is efa, fabric is efa`
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,]+)")
# `NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>`
_USING = re.compile(r"NCCL INFO NET/([^\s:]+) ?: Using ((?:\[\d+\]\S+ ?)+)")
_DEVICE = re.compile(r"\[\d+\](\S+)")
# `Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA`, `via P2P/CUMEM`, `via SHM/direct`
_CHANNEL = re.compile(r" via ((?:NET|P2P|SHM|NVLS|COLLNET|DIRECT)\b\S*(?: [A-Z]\w*(?:/\S+)?)*)")
_NUMBERS = re.compile(r"/\d+(\(\d+\))?(?=/|$)")
_VERSION = re.compile(r"\b(?:NCCL|RCCL) version (\S+)")
_WARNING = re.compile(r"(?:NCCL|RCCL) WARN (.+?)\s*$")


@dataclass(frozen=True)
class Transport:
    """What the log of one process tells.

    `network`: what carries data between nodes, as the library calls it, None where it says nothing; several
    communicators with unlike ones are joined by ` and `. `provider`: libfabric's, where that is used.
    `devices`: `mlx5_0:1/IB`, of a socket the interface. `channels`: how often each kind of channel was made,
    `NET/AWS Libfabric/GDRDMA` or `P2P/CUMEM`; device numbers are left out. `warnings`: each once.
    """

    network: str | None = None
    provider: str | None = None
    devices: tuple[str, ...] = ()
    channels: tuple[tuple[str, int], ...] = ()
    version: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def family(self) -> str | None:
        """The fabric that this is: `efa`, `tcpx`, `tcpxo`, `gib`, `ib`, `socket`, or the network's own name
        in small letters; None where the log tells no network. Libfabric is what its provider is: efa is EFA,
        tcp is sockets."""
        if self.network is None:
            return None
        families = dict.fromkeys(_family(name, self.provider) for name in self.network.split(" and "))
        # Data that goes by sockets in one communicator is a fall-back, whatever the others do.
        by_socket = any(kind.startswith("NET/Socket") for kind, _ in self.channels)
        return "socket" if by_socket or "socket" in families else "+".join(families)

    @property
    def gpu_direct(self) -> bool | None:
        """Whether cards reach the network past the CPU's memory; None where no channel goes by a network."""
        kinds = [kind for kind, _ in self.channels if kind.startswith("NET/")]
        return any("GDRDMA" in kind for kind in kinds) if kinds else None


def _family(network: str, provider: str | None) -> str:
    name = network.lower()
    if "libfabric" in name or name in ("ofi", "aws ofi"):
        if provider is None:
            return "libfabric"
        word = provider.lower().partition(";")[0]
        return "socket" if word in ("tcp", "sockets", "udp", "net") else word
    for start, family in (
        ("fastrak", "tcpxo"),
        ("gpudirecttcpx", "tcpx"),
        ("gib", "gib"),
        ("ib", "ib"),
        ("socket", "socket"),
        ("fastsocket", "socket"),
    ):
        if name.startswith(start):
            return family
    return name


def read(lines: Iterable[str]) -> Transport:
    """The transport that a log tells. Lines that it does not know say nothing."""
    networks: dict[str, None] = {}
    devices: dict[str, dict[str, None]] = {}
    channels: dict[str, int] = {}
    warnings: dict[str, None] = {}
    provider = version = None
    for line in lines:
        if (match := _NETWORK.search(line)) is not None:
            networks[match[1]] = None
        elif (match := _CHANNEL.search(line)) is not None:
            kind = _NUMBERS.sub("", match[1])
            if kind in channels or len(channels) < MOST_NAMES:
                channels[kind] = channels.get(kind, 0) + 1
        elif (match := _USING.search(line)) is not None:
            known = devices.setdefault(match[1], {})
            known.update(dict.fromkeys(each[1] for each in _DEVICE.finditer(match[2])))
        elif (match := _PROVIDER.search(line)) is not None:
            provider = match[1]
        elif (match := _WARNING.search(line)) is not None and len(warnings) < MOST_NAMES:
            warnings[match[1]] = None
        elif (match := _VERSION.search(line)) is not None:
            version = match[1]
    of_network = {name: None for network in networks for name in _devices_of(network, devices)}
    return Transport(
        " and ".join(networks) or None,
        provider,
        tuple(of_network)[:MOST_NAMES],
        tuple(sorted(channels.items())),
        version,
        tuple(warnings),
    )


def _devices_of(network: str, devices: dict[str, dict[str, None]]) -> Iterable[str]:
    """Devices that the network's own line lists: of a socket `eth0`, without its address."""
    for plugin, names in devices.items():
        if plugin.lower() == network.lower() or (plugin == "IB" and network.lower().startswith("ib")):
            yield from (name.partition(":")[0] if plugin == "Socket" else name for name in names)
