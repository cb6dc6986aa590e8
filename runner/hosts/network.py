"""The network a cluster talks over: the addresses its hosts were given, or the private network they all have.

Pure. A network counts only when every host has exactly one address in it, and no two the same one: bridges
between containers repeat the same addresses on each host.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orch.runner.hosts.host_facts import Interface, IpInterface
from orch.spec.grammar.hosts import is_private

# Networks between the containers or virtual machines of one host, by the names their makers give them.
_PLUMBING = re.compile(
    r"docker|br-[0-9a-f]{12}|veth|cni|cali|flannel|cilium|lxc|lxd|virbr|vnet|podman|weave|antrea|ovs|ovn"
    r"|kube|nodelocaldns|tunl|vxlan|dummy|ifb|gre|sit|ip6tnl|erspan"
)


@dataclass(frozen=True)
class Member:
    """A host that is to be in the network; `internal_ip` is the address it was given in the file."""

    name: str
    interfaces: tuple[Interface, ...]
    internal_ip: str | None = None
    sees_addresses: bool = True


@dataclass(frozen=True)
class Place:
    """Where a host is in the network."""

    name: str
    address: str
    interface: str
    mtu: int
    speed_mbps: int | None = None
    rdma: bool = False


@dataclass(frozen=True)
class ClusterNetwork:
    """`cidr` is None when the hosts' addresses were given one by one and lie in several networks."""

    cidr: str | None
    places: tuple[Place, ...]

    def place(self, name: str) -> Place | None:
        return next((place for place in self.places if place.name == name), None)

    @property
    def mtus(self) -> Mapping[int, tuple[str, ...]]:
        """The hosts by their MTU: one entry when all is well."""
        found: dict[int, tuple[str, ...]] = {}
        for place in self.places:
            found[place.mtu] = (*found.get(place.mtu, ()), place.name)
        return found


@dataclass(frozen=True)
class NetworkProblem:
    """Why there is no network, or a host twice: ORCH361, 362 or 368, and the hosts it is about."""

    code: str
    summary: str
    hosts: tuple[str, ...]
    detail: str = ""
    hint: str = ""


Found = tuple[ClusterNetwork | None, tuple[NetworkProblem, ...]]


def find_network(members: Sequence[Member], *, network: str | None = None, cluster: bool = True) -> Found:
    """The network of `members`, or what is wrong. Outside a cluster, having none in common is no problem."""
    if not members:
        return None, ()
    blind = tuple(member.name for member in members if not member.sees_addresses)
    if blind:
        problem = NetworkProblem(
            "ORCH361",
            "the addresses of a host cannot be told",
            blind,
            detail="there is no `ip` command",
            hint="install iproute2 on it",
        )
        return None, (problem,)
    if any(member.internal_ip for member in members):
        return _given(members)
    if network is not None:
        return _within(members, network)
    return _detected(members, cluster=cluster)


def twins(machine_ids: Mapping[str, str | None]) -> tuple[NetworkProblem, ...]:
    """Hosts with one machine id: one host under two names, or copies of one image."""
    counts = Counter(each for each in machine_ids.values() if each)
    return tuple(
        NetworkProblem(
            "ORCH368",
            "several hosts have the same /etc/machine-id",
            tuple(name for name, each in machine_ids.items() if each == machine_id),
            detail=machine_id,
            hint="list a host once; on a copy: `sudo rm /etc/machine-id && sudo systemd-machine-id-setup`",
        )
        for machine_id, count in counts.items()
        if count > 1
    )


def candidates(member: Member) -> dict[str, list[tuple[Interface, IpInterface]]]:
    """Private networks of a host by CIDR, with its addresses in each."""
    found: dict[str, list[tuple[Interface, IpInterface]]] = {}
    for interface, address in _addresses(member):
        single = address.network.prefixlen == address.network.max_prefixlen
        if is_private(address.network) and not single:
            found.setdefault(str(address.network), []).append((interface, address))
    return found


def _addresses(member: Member) -> list[tuple[Interface, IpInterface]]:
    return [
        (interface, ipaddress.ip_interface(text))
        for interface in member.interfaces
        if interface.kind not in ("loopback", "bridge") and not _PLUMBING.match(interface.name)
        for text in interface.addresses
    ]


def _place(member: Member, interface: Interface, address: IpInterface) -> Place:
    return Place(
        member.name,
        str(address.ip),
        interface.name,
        interface.mtu,
        interface.speed_mbps,
        bool(interface.rdma),
    )


def _given(members: Sequence[Member]) -> Found:
    """Each host's own `internal_ip`, which one of its interfaces must have."""
    places: list[Place] = []
    networks: set[str] = set()
    problems: list[NetworkProblem] = []
    for member in members:
        every = [(i, ipaddress.ip_interface(text)) for i in member.interfaces for text in i.addresses]
        own = next(((i, a) for i, a in every if str(a.ip) == member.internal_ip), None)
        if own is None:
            problems.append(
                NetworkProblem(
                    "ORCH361",
                    f"no interface of {member.name} has the address {member.internal_ip}",
                    (member.name,),
                    detail=f"it has {_list(_told(member)) or 'none'}",
                    hint="set its `internal_ip` to one of these, or remove all `internal_ip`",
                )
            )
        else:
            places.append(_place(member, *own))
            networks.add(str(own[1].network))
    if problems:
        return None, tuple(problems)
    return ClusterNetwork(networks.pop() if len(networks) == 1 else None, tuple(places)), ()


def _within(members: Sequence[Member], network: str) -> Found:
    """The one address each host has in `network`."""
    wanted = ipaddress.ip_network(network)
    places: list[Place] = []
    problems: list[NetworkProblem] = []
    for member in members:
        inside = [(i, a) for i, a in _addresses(member) if a.version == wanted.version and a.ip in wanted]
        if len(inside) == 1:
            places.append(_place(member, *inside[0]))
            continue
        told = _list([f"{address.ip} ({interface.name})" for interface, address in inside])
        problems.append(
            NetworkProblem(
                "ORCH361",
                f"{member.name} has {len(inside) or 'no'} addresses in the network {network}",
                (member.name,),
                detail=told or f"it has {_list(_told(member)) or 'none'}",
                hint="give each host's address instead: `internal_ip`"
                if inside
                else "set `network` to the range that all hosts have an address in",
            )
        )
    return (None, tuple(problems)) if problems else (ClusterNetwork(str(wanted), tuple(places)), ())


def _detected(members: Sequence[Member], *, cluster: bool) -> Found:
    """The best of the private networks that all hosts have."""
    names = tuple(member.name for member in members)
    of_each = [candidates(member) for member in members]
    shared: list[ClusterNetwork] = []
    for cidr in of_each[0]:
        rows = [each.get(cidr, []) for each in of_each]
        if all(len(row) == 1 for row in rows):
            places = tuple(_place(member, *row[0]) for member, row in zip(members, rows, strict=True))
            if len({place.address for place in places}) == len(places):
                shared.append(ClusterNetwork(cidr, places))
    if not shared:
        if not cluster:
            return None, ()
        told = "; ".join(
            f"{m.name}: {_list(list(each)) or 'none'}" for m, each in zip(members, of_each, strict=True)
        )
        problem = NetworkProblem(
            "ORCH362",
            "the hosts have no private network in common",
            names,
            detail=f"private networks: {told}",
            hint="connect them to one network, or give each host's `internal_ip` where networks are routed",
        )
        return None, (problem,)
    best = max(_rank(network) for network in shared)
    equal = [network for network in shared if _rank(network) == best]
    if len(equal) > 1 and len(members) > 1:
        if not cluster:
            return min(equal, key=lambda network: str(network.cidr)), ()
        told = "; ".join(f"{network.cidr} ({_described(network)})" for network in equal)
        problem = NetworkProblem(
            "ORCH362",
            f"the hosts have {len(equal)} private networks in common, none better than the others",
            names,
            detail=told,
            hint=f"say which: `network: {equal[0].cidr}`",
        )
        return None, (problem,)
    return min(equal, key=lambda network: str(network.cidr)), ()


def _rank(network: ClusterNetwork) -> tuple[bool, int, int, bool]:
    """RDMA first, then speed, then MTU, each of the weakest host; of one link's networks the one of IPv4."""
    places = network.places
    return (
        all(place.rdma for place in places),
        min(place.speed_mbps or 0 for place in places),
        min(place.mtu for place in places),
        ":" not in places[0].address,
    )


def _described(network: ClusterNetwork) -> str:
    interfaces = _list(list(dict.fromkeys(place.interface for place in network.places)))
    rdma, speed, mtu, _ = _rank(network)
    told = [interfaces, "RDMA" if rdma else "", f"{speed} Mb/s" if speed else "speed unknown", f"MTU {mtu}"]
    return ", ".join(part for part in told if part)


def _told(member: Member) -> list[str]:
    """Addresses that could be meant."""
    return [
        f"{address.ip} ({interface.name})"
        for interface, address in _addresses(member)
        if not address.is_link_local
    ]


def _list(words: Sequence[str]) -> str:
    return ", ".join(words[:6]) + (", …" if len(words) > 6 else "")
