"""The network of a cluster: the hosts' `internal_ip` addresses, or a private network that all hosts have.

Pure. A network counts only when every host has exactly one address in it, and all addresses differ: bridges
between containers repeat the same addresses on each host.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orch.runner.hosts.host_facts import HostInterface, IpInterface
from orch.spec.grammar.hosts import is_private

# Networks between the containers or virtual machines of one host, by the names their makers give them.
_PLUMBING = re.compile(
    r"docker|br-[0-9a-f]{12}|veth|cni|cali|flannel|cilium|lxc|lxd|virbr|vnet|podman|weave|antrea|ovs|ovn"
    r"|kube|nodelocaldns|tunl|vxlan|dummy|ifb|gre|sit|ip6tnl|erspan"
)


@dataclass(frozen=True)
class NetworkMember:
    """A host that needs an address in the network; `internal_ip` is its address in the fleet file, if set."""

    name: str
    interfaces: tuple[HostInterface, ...]
    internal_ip: str | None = None
    sees_addresses: bool = True


@dataclass(frozen=True)
class ClusterAddress:
    """A host's address in the network, with the interface that has it."""

    name: str
    address: str
    interface: str
    mtu: int
    speed_mbps: int | None = None
    rdma: bool = False


@dataclass(frozen=True)
class ClusterNetwork:
    """The network of a cluster. `cidr` is None when the hosts' `internal_ip` are in several networks."""

    cidr: str | None
    addresses: tuple[ClusterAddress, ...]

    def address_of(self, name: str) -> ClusterAddress | None:
        """The address of the host of this name, None when it has none in this network."""
        return next((address for address in self.addresses if address.name == name), None)

    @property
    def mtus(self) -> Mapping[int, tuple[str, ...]]:
        """MTU -> host names: one entry when all hosts agree."""
        hosts_by_mtu: dict[int, tuple[str, ...]] = {}
        for address in self.addresses:
            hosts_by_mtu[address.mtu] = (*hosts_by_mtu.get(address.mtu, ()), address.name)
        return hosts_by_mtu


@dataclass(frozen=True)
class NetworkProblem:
    """Why the hosts have no common network, or the same machine id (ORCH361, 362, 368), and which hosts."""

    code: str
    summary: str
    hosts: tuple[str, ...]
    detail: str = ""
    hint: str = ""


NetworkResult = tuple[ClusterNetwork | None, tuple[NetworkProblem, ...]]


def find_network(
    members: Sequence[NetworkMember], *, network: str | None = None, cluster: bool = True
) -> NetworkResult:
    """The network of `members`, or what is wrong. Only a cluster needs a network in common."""
    if not members:
        return None, ()
    without_ip_command = tuple(member.name for member in members if not member.sees_addresses)
    if without_ip_command:
        problem = NetworkProblem(
            "ORCH361",
            "the addresses of a host cannot be told",
            without_ip_command,
            detail="there is no `ip` command",
            hint="install iproute2 on it",
        )
        return None, (problem,)
    if any(member.internal_ip for member in members):
        return _from_internal_ips(members)
    if network is not None:
        return _in_network(members, network)
    return _best_common(members, cluster=cluster)


def duplicate_machine_ids(machine_ids: Mapping[str, str | None]) -> tuple[NetworkProblem, ...]:
    """A problem per machine id that several hosts have: one host under two names, or copies of one image."""
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


def candidates(member: NetworkMember) -> dict[str, list[tuple[HostInterface, IpInterface]]]:
    """Private networks of a host by CIDR, with its addresses in each."""
    networks: dict[str, list[tuple[HostInterface, IpInterface]]] = {}
    for interface, address in _addresses(member):
        single = address.network.prefixlen == address.network.max_prefixlen
        if is_private(address.network) and not single:
            networks.setdefault(str(address.network), []).append((interface, address))
    return networks


def _addresses(member: NetworkMember) -> list[tuple[HostInterface, IpInterface]]:
    return [
        (interface, ipaddress.ip_interface(text))
        for interface in member.interfaces
        if interface.kind not in ("loopback", "bridge") and not _PLUMBING.match(interface.name)
        for text in interface.addresses
    ]


def _host_address(member: NetworkMember, interface: HostInterface, address: IpInterface) -> ClusterAddress:
    return ClusterAddress(
        member.name,
        str(address.ip),
        interface.name,
        interface.mtu,
        interface.speed_mbps,
        bool(interface.rdma),
    )


def _from_internal_ips(members: Sequence[NetworkMember]) -> NetworkResult:
    """Each host's own `internal_ip`, which one of its interfaces must have."""
    addresses: list[ClusterAddress] = []
    networks: set[str] = set()
    problems: list[NetworkProblem] = []
    for member in members:
        all_addresses = [(i, ipaddress.ip_interface(text)) for i in member.interfaces for text in i.addresses]
        own = next(((i, a) for i, a in all_addresses if str(a.ip) == member.internal_ip), None)
        if own is None:
            problems.append(
                NetworkProblem(
                    "ORCH361",
                    f"no interface of {member.name} has the address {member.internal_ip}",
                    (member.name,),
                    detail=f"it has {_list(_usable_addresses(member)) or 'none'}",
                    hint="set its `internal_ip` to one of these, or remove all `internal_ip`",
                )
            )
        else:
            addresses.append(_host_address(member, *own))
            networks.add(str(own[1].network))
    if problems:
        return None, tuple(problems)
    return ClusterNetwork(networks.pop() if len(networks) == 1 else None, tuple(addresses)), ()


def _in_network(members: Sequence[NetworkMember], network: str) -> NetworkResult:
    """The one address each host has in `network`."""
    ip_network = ipaddress.ip_network(network)
    addresses: list[ClusterAddress] = []
    problems: list[NetworkProblem] = []
    for member in members:
        matches = [
            (i, a) for i, a in _addresses(member) if a.version == ip_network.version and a.ip in ip_network
        ]
        if len(matches) == 1:
            addresses.append(_host_address(member, *matches[0]))
            continue
        described = _list([f"{address.ip} ({interface.name})" for interface, address in matches])
        problems.append(
            NetworkProblem(
                "ORCH361",
                f"{member.name} has {len(matches) or 'no'} addresses in the network {network}",
                (member.name,),
                detail=described or f"it has {_list(_usable_addresses(member)) or 'none'}",
                hint="give each host's address instead: `internal_ip`"
                if matches
                else "set `network` to the range that all hosts have an address in",
            )
        )
    return (None, tuple(problems)) if problems else (ClusterNetwork(str(ip_network), tuple(addresses)), ())


def _best_common(members: Sequence[NetworkMember], *, cluster: bool) -> NetworkResult:
    """The best of the private networks that all hosts have."""
    names = tuple(member.name for member in members)
    candidates_of_hosts = [candidates(member) for member in members]
    shared: list[ClusterNetwork] = []
    for cidr in candidates_of_hosts[0]:
        rows = [each.get(cidr, []) for each in candidates_of_hosts]
        if all(len(row) == 1 for row in rows):
            addresses = tuple(
                _host_address(member, *row[0]) for member, row in zip(members, rows, strict=True)
            )
            if len({host_address.address for host_address in addresses}) == len(addresses):
                shared.append(ClusterNetwork(cidr, addresses))
    if not shared:
        if not cluster:
            return None, ()
        described = "; ".join(
            f"{m.name}: {_list(list(each)) or 'none'}"
            for m, each in zip(members, candidates_of_hosts, strict=True)
        )
        problem = NetworkProblem(
            "ORCH362",
            "the hosts have no private network in common",
            names,
            detail=f"private networks: {described}",
            hint="connect them to one network, or give each host's `internal_ip` where networks are routed",
        )
        return None, (problem,)
    best_rank = max(_rank(network) for network in shared)
    equally_good = [network for network in shared if _rank(network) == best_rank]
    if len(equally_good) > 1 and len(members) > 1:
        if not cluster:
            return min(equally_good, key=lambda network: str(network.cidr)), ()
        described = "; ".join(f"{network.cidr} ({_summary(network)})" for network in equally_good)
        problem = NetworkProblem(
            "ORCH362",
            f"the hosts have {len(equally_good)} private networks in common, none better than the others",
            names,
            detail=described,
            hint=f"say which: `network: {equally_good[0].cidr}`",
        )
        return None, (problem,)
    return min(equally_good, key=lambda network: str(network.cidr)), ()


def _rank(network: ClusterNetwork) -> tuple[bool, int, int, bool]:
    """RDMA first, then speed, then MTU, each of the weakest host; of one link's networks the one of IPv4."""
    addresses = network.addresses
    return (
        all(host_address.rdma for host_address in addresses),
        min(host_address.speed_mbps or 0 for host_address in addresses),
        min(host_address.mtu for host_address in addresses),
        ":" not in addresses[0].address,
    )


def _summary(network: ClusterNetwork) -> str:
    interfaces = _list(list(dict.fromkeys(host_address.interface for host_address in network.addresses)))
    rdma, speed, mtu, _ = _rank(network)
    described = [
        interfaces,
        "RDMA" if rdma else "",
        f"{speed} Mb/s" if speed else "speed unknown",
        f"MTU {mtu}",
    ]
    return ", ".join(part for part in described if part)


def _usable_addresses(member: NetworkMember) -> list[str]:
    """Addresses that could be the host's `internal_ip`, with their interfaces."""
    return [
        f"{address.ip} ({interface.name})"
        for interface, address in _addresses(member)
        if not address.is_link_local
    ]


def _list(words: Sequence[str]) -> str:
    return ", ".join(words[:6]) + (", …" if len(words) > 6 else "")
