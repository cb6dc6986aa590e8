"""The networks of a fleet: made, shared or given, counted against the interfaces of its nodes. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Literal

from orch.catalog.gcp.machines import Shape
from orch.components.file_systems import FileSystem
from orch.components.gcp.account.facts import GcpFacts, Network
from orch.components.gcp.account.lookups import NetworkLookup
from orch.components.gcp.candidates import CloudCandidate
from orch.components.gcp.network_findings import given_findings, overlap_findings
from orch.components.gcp.plan import BASTION, NODES, Firewall, Interface, Networks, NetworkStack, Subnet, Vpc
from orch.components.gcp.ssh_access import IAP, SSH, AccessMethod, jump_findings, jump_sources, way_in
from orch.spec.findings import Finding
from orch.spec.rules.file_systems import filestore_range as range_of_sizes

# Ranges of made networks. Those of one node's interfaces must not overlap; fleets do not reach each other, so
# all may have the same.
HOSTS = "10.0.0.0/12"
DATAS = "10.16.0.0/12"
RDMA = "10.64.0.0/13"
FILESTORES = "10.32.0.0/13"
ROUND = 16


@dataclass(frozen=True)
class NetworkDecision:
    """The networks with all that was decided about ways in and out."""

    networks: Networks
    shared: NetworkStack | None
    interfaces: tuple[Interface, ...]
    way: AccessMethod
    public: bool
    findings: tuple[Finding, ...]


def decide_networks(
    lookup: NetworkLookup,
    candidate: CloudCandidate,
    shape: Shape,
    facts: GcpFacts,
    base: str,
    *,
    net_base: str,
) -> NetworkDecision | tuple[Finding, ...]:
    """Everything about the networks; only what is wrong, when there is nothing to decide on.

    `base` begins the names of what is the fleet's own, `net_base` those of networks it shares.
    """
    findings = tuple(given_findings(lookup, candidate, shape, facts))
    if any(each.severity.value == "error" for each in findings):
        return findings
    vpcs = _vpcs(lookup, candidate, shape, facts, net_base if lookup.shared else base)
    findings += tuple(overlap_findings(vpcs))
    public = _public(lookup, several=shape.hosts + shape.datas + shape.rdmas > 1)
    way = way_in(lookup, public=public)
    interfaces = tuple(_interfaces(vpcs, shape))
    first = vpcs[0]
    if way.kind == "given":
        way = replace(way, sources=jump_sources(lookup, first, facts))
    findings += tuple(jump_findings(way, first))
    nat = f"{net_base if lookup.shared else base}-nat"
    own_nat = None if public or first.origin != "made" else nat
    project = lookup.host_project if any(each.origin == "given" for each in vpcs) else None
    firewalls = (*_within(vpcs, base, project), *_ways(way, first, lookup, base, project))
    networks = Networks(vpcs, firewalls, own_nat, project)
    shared = None
    if lookup.shared is not None:
        shared_vpcs = tuple(_as_new(each) for each in vpcs if each.origin == "shared")
        rules = tuple(_within(shared_vpcs, net_base, None))
        shared_networks = Networks(shared_vpcs, rules, nat, None)
        shared = NetworkStack(
            lookup.shared, net_base, candidate.region, candidate.zone, _shape_name(shape), shared_networks
        )
    return NetworkDecision(networks, shared, interfaces, way, public, findings)


def _shape_name(shape: Shape) -> str:
    """What networks are for: fleets that share them must agree on it."""
    return (
        f"{shape.hosts}x{shape.host_mtu}+{shape.datas}x{shape.data_mtu}+{shape.rdma_subnets}{shape.profile}"
    )


def _as_new(vpc: Vpc) -> Vpc:
    return Vpc(vpc.name, vpc.role, vpc.mtu, vpc.subnets, "made", vpc.profile, vpc.dual)


def _vpcs(
    lookup: NetworkLookup, candidate: CloudCandidate, shape: Shape, facts: GcpFacts, base: str
) -> tuple[Vpc, ...]:
    """Networks in order of a node's interfaces."""
    origin: Literal["made", "shared"] = "shared" if lookup.shared else "made"
    dual = shape.stack == "dual"
    extras = iter(lookup.extras)
    vpcs: list[Vpc] = []
    for index in range(shape.hosts):
        name = lookup.vpc if index == 0 else next(extras, None)
        cidr = _part(HOSTS, index)
        subnet = Subnet(f"{base}-host-{index}", cidr, dual)
        vpcs.append(
            _given(facts, name, "host", lookup.subnets)
            or Vpc(f"{base}-host-{index}", "host", shape.host_mtu, (subnet,), origin, dual=dual)
        )
    for index in range(shape.datas):
        subnet = Subnet(f"{base}-data-{index}", _part(DATAS, index))
        vpcs.append(
            _given(facts, next(extras, None), "data", lookup.subnets)
            or Vpc(f"{base}-data-{index}", "data", shape.data_mtu, (subnet,), origin)
        )
    if shape.rdmas:
        profile = f"{candidate.zone}-{shape.profile}"
        name = f"{base}-rdma" if shape.rdma_subnets else _short(base)
        roce = facts.network(lookup.roce[0]) if lookup.roce else None
        if roce is not None:
            subnets = tuple(Subnet(each.name, each.cidr) for each in _sorted(roce))
            vpcs.append(Vpc(roce.name, "rdma", roce.mtu, subnets, "given", roce.profile))
        else:
            subnets = _rdma_subnets(name, shape)
            vpcs.append(Vpc(name, "rdma", shape.rdma_mtu, subnets, origin, profile))
    return tuple(vpcs)


def _short(base: str) -> str:
    """A name that leaves room: the subnet that a bare-metal profile makes is named after its network."""
    return f"orch-{hashlib.sha256(base.encode()).hexdigest()[:8]}-rdma"


def _given(
    facts: GcpFacts, name: str | None, role: Literal["host", "data"], subnets: Sequence[str]
) -> Vpc | None:
    network = facts.network(name) if name else None
    if network is None:
        return None
    chosen = next((each for each in _sorted(network) if each.name in subnets), None) or _sorted(network)[0]
    return Vpc(network.name, role, network.mtu, (chosen,), "given", dual=chosen.dual)


def _sorted(network: Network) -> list[Subnet]:
    """Its subnets, by name with numbers as numbers."""

    def key(name: str) -> tuple[object, ...]:
        head = name.rstrip("0123456789")
        return (head, int(name[len(head) :] or 0))

    subnets = [Subnet(each.name, each.cidr, each.stack != "IPV4_ONLY") for each in network.subnets]
    return sorted(subnets, key=lambda each: key(each.name))


def _rdma_subnets(name: str, shape: Shape) -> tuple[Subnet, ...]:
    """Cut from one range, as many bits as it takes; a profile that makes its own gets none.

    Source: cluster-toolkit modules/network/gpu-rdma-vpc; Google Cloud "RDMA network profiles", bare metal.
    """
    if not shape.rdma_subnets:
        return ()
    whole = ipaddress.ip_network(RDMA)
    parts = list(
        whole.subnets(prefixlen_diff=ceil(log2(shape.rdma_subnets)) if shape.rdma_subnets > 1 else 0)
    )
    return tuple(Subnet(f"{name}-{index}", str(parts[index])) for index in range(shape.rdma_subnets))


def _part(whole: str, index: int) -> str:
    """The index-th /16 of a range."""
    return str(list(ipaddress.ip_network(whole).subnets(new_prefix=ROUND))[index])


def _interfaces(vpcs: Sequence[Vpc], shape: Shape) -> Iterator[Interface]:
    """The interfaces of each node, in order."""
    for vpc in vpcs:
        if vpc.role != "rdma":
            kind = shape.host_nic if vpc.role == "host" else "GVNIC"
            yield Interface(vpc.name, vpc.subnets[0].name, kind, "IPV4_IPV6" if vpc.dual else "IPV4_ONLY")
            continue
        for index in range(shape.rdmas):
            if shape.rdma_subnets:
                yield Interface(vpc.name, vpc.subnets[index].name, "MRDMA")
            else:
                # The one subnet that a bare-metal profile makes by itself.
                yield Interface(vpc.name, f"default-subnet-1-{vpc.name}", "MRDMA", "IPV6_ONLY")


def filestore_range(fleet: str, each: FileSystem) -> str:
    """The addresses of a Filestore in a made network, outside of those that subnets get, also later ones.

    `fleet`: its base name, for several fleets may share a network. A /24 for each by its name, of which a /26
    is taken up to 9.75 TiB. Source: Filestore API, NetworkConfig (`reservedIpRange`).
    """
    blocks = list(ipaddress.ip_network(FILESTORES).subnets(new_prefix=24))
    number = int(hashlib.sha256(f"{fleet} {each.name}".encode()).hexdigest(), 16)
    address = blocks[number % len(blocks)].network_address
    return f"{address}/{26 if range_of_sizes(each.size or 0) == 0 else 24}"


def _public(lookup: NetworkLookup, *, several: bool) -> bool:
    """`auto`: private with several interfaces; else public where that saves a bastion."""
    if lookup.public_ips != "auto":
        return lookup.public_ips
    if several or lookup.block.proxy_jump is not None or lookup.block.bastion is True:
        return False
    return bool(lookup.ssh_cidrs)


def _within(vpcs: Sequence[Vpc], base: str, project: str | None) -> Iterator[Firewall]:
    """Nodes among themselves. A RoCE network lets everything in by itself and takes no rules.

    Source: Google Cloud "RDMA network profiles", implied firewall rules.
    """
    for index, vpc in enumerate(vpcs):
        if vpc.role == "rdma" or vpc.origin == "shared" or (vpc.origin == "given" and project is not None):
            continue
        ranges = tuple(each.cidr for each in vpc.subnets if each.cidr)
        new = vpc.origin == "made"
        yield Firewall(
            f"{base}-within-{index}",
            vpc.name,
            ranges if new else (NODES,),
            "all" if new else "nodes",
            None,
            "nodes reach each other",
        )


def _ways(
    way: AccessMethod, first: Vpc, lookup: NetworkLookup, base: str, project: str | None
) -> Iterator[Firewall]:
    """SSH, and nothing else, from outside."""
    if first.origin == "given" and project is not None:
        return
    name = f"{base}-ssh"
    if way.kind == "bastion":
        peers = lookup.ssh_cidrs if way.bastion == "public" else (IAP,)
        why = "SSH from ssh_cidrs" if way.bastion == "public" else "SSH through IAP"
        yield Firewall(f"{base}-bastion", first.name, peers, "bastion", SSH, why)
        yield Firewall(name, first.name, (BASTION,), "nodes", SSH, "SSH from the bastion")
    elif way.kind == "iap":
        yield Firewall(name, first.name, (IAP,), "nodes", SSH, "SSH through IAP")
    elif way.kind == "direct":
        yield Firewall(name, first.name, lookup.ssh_cidrs, "nodes", SSH, "SSH from ssh_cidrs")
    elif way.sources:
        yield Firewall(name, first.name, way.sources, "nodes", SSH, "SSH from the jump host")


def reasons(decision: NetworkDecision, shape: Shape, lookup: NetworkLookup) -> Iterator[str]:
    """What the plan says about them."""
    vpcs = decision.networks.vpcs
    count = {role: [each for each in vpcs if each.role == role] for role in ("host", "data", "rdma")}
    parts = [f"{len(count['host'])} for IP traffic (MTU {count['host'][0].mtu})"]
    if count["data"]:
        parts.append(f"{len(count['data'])} for the GPUs (MTU {count['data'][0].mtu})")
    for each in count["rdma"]:
        subnets = f"{len(each.subnets)} subnets" if each.subnets else "the subnet its profile makes"
        parts.append(f"1 for RDMA (MTU {each.mtu}, {each.profile}, {subnets})")
    origins = {each.origin for each in vpcs}
    whose = {
        frozenset({"made"}): "of its own",
        frozenset({"shared"}): f"shared as '{lookup.shared}'",
        frozenset({"given"}): "that are given, nothing of them is changed",
    }.get(
        frozenset(origins),
        "of which " + ", ".join(each.name for each in vpcs if each.origin == "given") + " given",
    )
    yield f"networks: {len(vpcs)} VPC{'s' * (len(vpcs) != 1)} {whose}: {', '.join(parts)}"
    if shape.rdmas:
        yield "the RDMA network belongs to its zone: another zone replaces it"
    kinds = [each.kind for each in decision.interfaces]
    each_kind = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    total = len(kinds)
    fast = f", {shape.gbps} Gbps between the GPUs" if shape.gbps else ""
    yield f"each node: {total} network interface{'s' * (total != 1)} ({each_kind}){fast}"
    yield "addresses: " + ("a public one each" if decision.public else "private ones only")
    if decision.networks.nat is not None:
        yield "out through Cloud NAT"
    yield from decision.way.reasons(lookup)
