"""The network of a fleet: made or given, who reaches it, and how. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from orch.components.aws.account.facts import AwsFacts, Subnet
from orch.components.aws.account.lookups import NetworkLookup
from orch.components.aws.candidates import CloudCandidate
from orch.components.aws.capacity import Demand
from orch.components.aws.plan import (
    Access,
    Addresses,
    AwsPlan,
    ExistingNetwork,
    NewNetwork,
    SecurityGroups,
    SecurityRule,
)
from orch.components.cloud.machines.ssh_access import source_findings
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, PlanErrors
from orch.spec.suggest import counted

# The VPC of a fleet's own. Fleets do not reach each other, so all may have the same.
VPC = "10.0.0.0/16"
NODES = "10.0.0.0/17"
EDGE = "10.0.128.0/24"
MORE = tuple(f"10.0.{third}.0/20" for third in range(144, 256, 16))
"""Subnets of further node groups, by their number from 1."""
# AWS keeps the first four addresses of a subnet and the last. Source: VPC user guide, "Subnet CIDR blocks".
KEPT_ADDRESSES = 5
SSH = 22


@dataclass(frozen=True)
class NetworkDecision:
    """The network with all that was decided about ways in and out."""

    network: NewNetwork | ExistingNetwork
    addresses: Addresses
    access: Access
    groups: SecurityGroups
    bastion: Literal["public", "ssm"] | None
    profile_for: Literal["nodes", "bastion"] | None
    findings: tuple[Finding, ...]


def decide_network(
    lookup: NetworkLookup, candidate: CloudCandidate, facts: AwsFacts, demand: Demand, base: str
) -> NetworkDecision | tuple[Finding, ...]:
    """Everything about the network; only what is wrong, when there is nothing to decide on."""
    findings: list[Finding] = list(_given_findings(lookup, facts))
    subnet = _subnet(lookup, candidate, facts)
    if isinstance(subnet, Finding):
        return (*findings, *(() if findings else (subnet,)))
    several = demand.interfaces > 1
    public = _public(lookup, subnet, several=several)
    if public and several:
        addresses = Addresses("elastic")
        findings.append(_elastic(demand, facts))
    else:
        addresses = Addresses("launch" if public else "none")
    if subnet is not None:
        findings += _subnet_findings(lookup, subnet, demand, public=public, several=several)
    way, bastion = _way(lookup, public=public)
    edge = _edge(facts, subnet) if subnet is not None else None
    if bastion == "public" and subnet is not None and edge is None:
        bastion = "ssm"
        findings.append(
            Finding(
                "ORCH226",
                "network",
                f"no subnet of {subnet.vpc} leads to the internet: SSM leads to the bastion, not `ssh_cidrs`",
                severity=Severity.WARNING,
            )
        )
    network = _network(facts, subnet, edge, public=public)
    groups = _groups(lookup, facts, network, way, base)
    findings += source_findings(lookup.ssh_cidrs, written=bool(lookup.block.ssh_cidrs), alone="SSM")
    if way == "given" and subnet is None:
        findings.append(
            Finding(
                "ORCH226",
                "network.proxy_jump",
                "the jump host lies outside the network that is made for the fleet",
                hint="give the jump host's network: `vpc` and `subnets`, or remove `proxy_jump`",
                severity=Severity.WARNING,
            )
        )
    profile: Literal["nodes", "bastion"] | None = "nodes" if way == "ssm" else None
    if bastion == "ssm":
        profile = "bastion"
    return NetworkDecision(
        network,
        addresses,
        Access(way, lookup.block.proxy_jump or ()),
        groups,
        bastion,
        profile,
        tuple(findings),
    )


def in_network_of(first: AwsPlan, group: AwsPlan) -> AwsPlan:
    """A node group in the network of the fleet's first one: a network that is made has a subnet for each.

    Raises PlanErrors for a given subnet whose nodes are not reached as those of the first group are.
    """
    kinds = [(each.access.way, each.addresses.kind, each.ssm) for each in (first, group)]
    if kinds[0] != kinds[1]:
        raise PlanErrors(
            [
                Finding(
                    "ORCH227",
                    "network",
                    f"nodes in the zone {group.zone} are not reached as those in {first.zone} are",
                    detail="the given subnets differ in how they lead to the internet",
                    hint="give subnets of one kind, private or public, in each zone",
                )
            ]
        )
    network = group.network
    if isinstance(network, NewNetwork):
        network = replace(network, nodes_cidr=MORE[group.number - 1], edge_cidr=None)
    return replace(group, network=network)


def elastic_ips(decision: NetworkDecision, demand: Demand) -> tuple[int, int]:
    """Elastic IPs that are new: of nodes, and of the NAT gateway."""
    nodes = demand.new if decision.addresses.kind == "elastic" else 0
    new_nat = isinstance(decision.network, NewNetwork) and not decision.network.public
    return nodes, int(new_nat and demand.new == demand.nodes)


def _given_findings(lookup: NetworkLookup, facts: AwsFacts) -> Iterator[Finding]:
    """Given pieces that are not there."""
    given_names = [("network.vpc", lookup.vpc), *(("network.subnets", each) for each in lookup.subnets)]
    given_names += [("network.security_groups", each) for each in lookup.groups]
    for path, name in given_names:
        if name in facts.ambiguous:
            yield Finding(
                "ORCH226",
                path,
                f"several are called {name} in {facts.region}: {', '.join(facts.ambiguous[name])}",
                hint="write the id of the one that is meant",
            )
        if name in facts.in_other_vpc:
            yield Finding(
                "ORCH226",
                path,
                f"{name} is of {facts.in_other_vpc[name]}, not of {facts.vpc.id if facts.vpc else 'that'}",
                hint="give subnets of one VPC",
            )
        if name is None or name not in facts.missing:
            continue
        if name in facts.elsewhere:
            yield Finding(
                "ORCH225",
                path,
                f"{name} is in {facts.elsewhere[name]}, the fleet goes to {facts.region}",
                hint=f"write `regions: [{facts.elsewhere[name]}]`, or name one of {facts.region}",
            )
        else:
            yield Finding("ORCH226", path, f"the account has no {name} in {facts.region}")
    vpc = facts.vpc.id if facts.vpc else next((each.vpc for each in facts.subnets), None)
    for group in facts.groups:
        if vpc is not None and group.vpc != vpc:
            summary = f"the security group {group.id} is of {group.vpc}, not of {vpc}"
            yield Finding("ORCH226", "network.security_groups", summary)
    if facts.groups and not any(group.itself for group in facts.groups):
        yield Finding(
            "ORCH226",
            "network.security_groups",
            "no given security group lets its members reach each other",
            detail="EFA needs all traffic from the group itself and to it, each by a rule of its own",
            hint="add both rules, or remove `security_groups` to have one made",
        )


def _subnet(lookup: NetworkLookup, candidate: CloudCandidate, facts: AwsFacts) -> Subnet | Finding | None:
    """The given subnet in the candidate's zone with most room, those behind a NAT first; None: made."""
    if not lookup.given:
        return None
    allowed = [each for each in facts.subnets if each.nodes]
    in_zone = [each for each in allowed if each.zone == candidate.zone]
    if not in_zone:
        zones = sorted({each.zone for each in allowed})
        return Finding(
            "ORCH227",
            "network.subnets" if lookup.subnets else "network.vpc",
            f"no given subnet is in the zone {candidate.zone}",
            detail=f"there are some in {', '.join(zones)}" if zones else None,
            hint="give a subnet of that zone, or narrow `availability_zones` to those with one",
        )
    private = lookup.public_ips is not True
    return min(in_zone, key=lambda each: ((each.egress == "nat") != private, -each.free, each.id))


def _public(lookup: NetworkLookup, subnet: Subnet | None, *, several: bool) -> bool:
    """`auto`: private with several interfaces; else public where that alone leads out, or saves a bastion."""
    if lookup.public_ips != "auto":
        return lookup.public_ips
    if several:
        return False
    if subnet is not None:
        return subnet.egress == "internet"
    jump = lookup.block.proxy_jump is not None or lookup.block.bastion is True
    return bool(lookup.ssh_cidrs) and not jump


def _elastic(demand: Demand, facts: AwsFacts) -> Finding:
    """AWS gives no public address at launch to an instance with several interfaces.

    Source: EC2 API reference, InstanceNetworkInterfaceSpecification, AssociatePublicIpAddress.
    """
    limit = facts.addresses
    over = limit is not None and (limit.used or 0) + demand.new > limit.limit
    quota = f", quota {limit.limit:g}" if limit else ""
    used = f" ({limit.used} in use)" if limit and limit.used else ""
    return Finding(
        "ORCH221",
        "network.public_ips",
        f"AWS assigns no public address at launch to an instance with several network interfaces: "
        f"{counted(demand.nodes, 'Elastic IP')} planned{quota}{used}",
        hint="write `public_ips: false` to reach the internet through NAT",
        severity=Severity.ERROR if over else Severity.WARNING,
    )


def _subnet_findings(
    lookup: NetworkLookup, subnet: Subnet, demand: Demand, *, public: bool, several: bool
) -> Iterator[Finding]:
    path = "network.subnets" if lookup.subnets else "network.vpc"
    if subnet.free < demand.new:
        size = ipaddress.ip_network(subnet.cidr)
        yield Finding(
            "ORCH220",
            path,
            f"{demand.new} nodes need {demand.new} addresses, "
            f"{subnet.id} ({subnet.cidr}) has {subnet.free} free",
            detail=f"a /{size.prefixlen} has {size.num_addresses - KEPT_ADDRESSES}: "
            f"AWS keeps {KEPT_ADDRESSES} of each subnet"
            + ("; EFA-only interfaces take none" if several else ""),
            hint="give a larger subnet, or remove `network` to have one made",
        )
    if not public and subnet.egress in ("internet", "none"):
        way = (
            "leads to the internet only for public addresses"
            if subnet.egress == "internet"
            else "has no way out"
        )
        yield Finding(
            "ORCH226",
            path,
            f"{subnet.id} {way}: private nodes could fetch no image",
            hint="give a subnet whose default route is a NAT gateway"
            + ("" if several else ", or write `public_ips: true`"),
            severity=Severity.ERROR if subnet.egress == "internet" else Severity.WARNING,
        )


def _edge(facts: AwsFacts, subnet: Subnet) -> str | None:
    """A subnet of the same VPC that leads to the internet, in the nodes' zone if there is one."""
    leading = [each for each in facts.subnets if (each.vpc, each.egress) == (subnet.vpc, "internet")]
    best = min(leading, key=lambda each: (each.zone != subnet.zone, each.id), default=None)
    return best.id if best else None


def _way(
    lookup: NetworkLookup, *, public: bool
) -> tuple[Literal["bastion", "given", "ssm", "direct"], Literal["public", "ssm"] | None]:
    """How SSH gets in, and what kind of bastion that takes."""
    if lookup.block.proxy_jump:
        return "given", None
    if lookup.block.bastion is False or (public and lookup.block.bastion != True):  # noqa: E712 - or "auto"
        return ("direct" if public and lookup.ssh_cidrs else "ssm"), None
    return "bastion", "public" if lookup.ssh_cidrs else "ssm"


def _network(
    facts: AwsFacts, subnet: Subnet | None, edge: str | None, *, public: bool
) -> NewNetwork | ExistingNetwork:
    if subnet is None:
        return NewNetwork(VPC, NODES, None if public else EDGE, public)
    cidr = facts.vpc.cidr if facts.vpc else subnet.cidr
    return ExistingNetwork(subnet.vpc, cidr, subnet.id, edge)


def _groups(
    lookup: NetworkLookup, facts: AwsFacts, network: NewNetwork | ExistingNetwork, way: str, base: str
) -> SecurityGroups:
    if lookup.groups:
        return SecurityGroups(tuple(group.id for group in facts.groups), None, (), ())
    ingress = [SecurityRule("itself", None, "nodes reach each other; EFA needs this rule")]
    if way == "bastion":
        ingress.append(SecurityRule("bastion", SSH, "SSH from the bastion"))
    elif way == "direct":
        ingress += [SecurityRule(cidr, SSH, "SSH from ssh_cidrs") for cidr in lookup.ssh_cidrs]
    elif way == "given":
        ingress += [
            SecurityRule(cidr, SSH, "SSH from the jump host") for cidr in _jump_sources(lookup, network)
        ]
    egress = (
        SecurityRule("itself", None, "EFA needs a rule to the group itself"),
        SecurityRule("0.0.0.0/0", None, "images and packages"),
    )
    return SecurityGroups((), f"{base}-nodes", tuple(ingress), egress)


def _jump_sources(lookup: NetworkLookup, network: NewNetwork | ExistingNetwork) -> tuple[str, ...]:
    """Where a given jump host comes from: the written networks, else the whole VPC."""
    return lookup.ssh_cidrs or (network.cidr,)


def reasons(lookup: NetworkLookup, decision: NetworkDecision, demand: Demand) -> Iterator[str]:
    """What the plan says about it."""
    network, way, bastion = decision.network, decision.access.way, decision.bastion
    if isinstance(network, ExistingNetwork):
        yield f"network: the given subnet {network.subnet} of {network.vpc}, nothing of it is changed"
    elif network.public:
        yield f"network: a VPC of its own ({network.cidr}), nodes in a public subnet {network.nodes_cidr}"
    else:
        yield (
            f"network: a VPC of its own ({network.cidr}), nodes in a private subnet {network.nodes_cidr}, "
            "out through one NAT gateway"
        )
    yield {
        "none": "addresses: private ones only",
        "launch": "addresses: a public one each, given at the launch",
        "elastic": f"addresses: {counted(demand.nodes, 'Elastic IP')}, attached after the launch",
    }[decision.addresses.kind]
    if way == "bastion":
        where = (
            f"which answers {', '.join(lookup.ssh_cidrs)}" if bastion == "public" else "reached through SSM"
        )
        open_ = "" if bastion == "public" else "; no port is open to the world"
        yield f"SSH: over a small bastion {where}{open_}"
    elif way == "given":
        whence = ", ".join(_jump_sources(lookup, network))
        yield "SSH: over the given jump host" + (f", from {whence}" if decision.groups.name else "")
    elif way == "ssm":
        yield "SSH: through SSM; no port is open to the world"
    else:
        yield f"SSH: straight, from {', '.join(lookup.ssh_cidrs)}"
