"""What is wrong with the networks of a fleet. Pure.

Of given ones, whether they serve: enough of them, distinct, of the right kind, zone and MTU, with addresses
for the nodes. Of all, whether they go together.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from orch.catalog.fabrics import fabric
from orch.catalog.gcp.machines import Shape
from orch.components.file_systems import FileSystem
from orch.components.gcp.account.facts import GcpFacts, Network
from orch.components.gcp.account.lookups import NetworkLookup
from orch.components.gcp.candidates import CloudCandidate
from orch.components.gcp.plan import Networks, NetworkStack, Vpc
from orch.components.request import PriorState
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding


def given_findings(
    lookup: NetworkLookup, candidate: CloudCandidate, shape: Shape, facts: GcpFacts
) -> Iterator[Finding]:
    """What is wrong with them, each at the property that gives it."""
    yield from _count(lookup, shape)
    yield from _distinct(lookup, shape)
    yield from _missing_findings(lookup, facts)
    yield from _plain(lookup, candidate, shape, facts)
    yield from _rdma(lookup, candidate, shape, facts)
    yield from _egress(lookup, facts)
    yield from _subnets(lookup, facts)
    if lookup.block.security_groups:
        yield Finding(
            "ORCH226",
            "network.security_groups",
            "GCP has no security groups: firewall rules belong to a network",
            hint="remove it: rules for the nodes among themselves are made by tag",
            severity=Severity.WARNING,
        )
    if lookup.shared and lookup.names:
        yield Finding(
            "ORCH226",
            "network.name",
            "networks that are given cannot be shared under a name",
            detail=f"{', '.join(lookup.names)} would not be made",
            hint="remove `name`, or the given networks",
        )


def _count(lookup: NetworkLookup, shape: Shape) -> Iterator[Finding]:
    """Too few networks would leave interfaces away, and bandwidth with them, without a word."""
    listed, needed = len(lookup.extras), shape.extras
    if not lookup.extras or listed == needed:
        return
    path = lookup.path("extra_vpcs")
    if listed > needed:
        yield Finding(
            "ORCH226",
            path,
            f"{shape.type} takes {needed} extra VPCs, {listed} are listed",
            detail="the first of them are used",
            severity=Severity.NOTE,
        )
        return
    missing = needed - listed
    fabric_record = fabric(shape.fabric)
    what = fabric_record.title if fabric_record else shape.fabric
    parts = f"{shape.datas} for the GPUs' traffic" if shape.datas else f"{shape.hosts - 1} for IP traffic"
    gpus = shape.datas and max(listed - (shape.hosts - 1), 0)
    if shape.datas:
        effect = f"{what} would run over {gpus} of {shape.datas} interfaces"
    else:
        effect = f"a node has {shape.hosts} interfaces for IP traffic, each in a VPC of its own"
    yield Finding(
        "ORCH222",
        path,
        f"{shape.type} needs {needed} extra VPC{'s' * (needed != 1)}, {listed} are listed: {missing} "
        f"{'is' if missing == 1 else 'are'} missing",
        detail=f"{parts}, each in a VPC of its own: {effect}" if shape.datas else effect,
        hint=f"list {needed}, or remove the line to have them created",
    )


def _distinct(lookup: NetworkLookup, shape: Shape) -> Iterator[Finding]:
    """Interfaces that are no RDMA interfaces must be in networks that all differ.

    Source: Google Cloud "Multiple network interfaces", specifications.
    """
    given_by: dict[str, str] = {lookup.vpc: "`vpc`"} if lookup.vpc else {}
    for index, name in enumerate(lookup.extras[: shape.extras]):
        if name in given_by:
            yield Finding(
                "ORCH226",
                lookup.path("extra_vpcs", index),
                f"two interfaces of a node would be in the VPC {name}",
                detail=f"it is given by {given_by[name]} already; each interface is in a network of its own",
                hint="name another network",
            )
        given_by.setdefault(name, f"`extra_vpcs[{index}]`")
    for index, name in enumerate(lookup.roce):
        if name in given_by:
            yield Finding(
                "ORCH226",
                lookup.path("roce_vpcs", index),
                f"the VPC {name} is given by {given_by[name]} too",
                detail="a network with an RDMA profile takes RDMA interfaces only",
                hint="name the network of the zone's RDMA profile",
            )


def _missing_findings(lookup: NetworkLookup, facts: GcpFacts) -> Iterator[Finding]:
    for path, name in places(lookup):
        if name in facts.missing:
            where = lookup.host_project or facts.project
            yield Finding("ORCH226", path, f"the project {where} has no VPC {name}")


def _subnets(lookup: NetworkLookup, facts: GcpFacts) -> Iterator[Finding]:
    """Written subnets are chosen among those of the given networks."""
    names = {each.name for network in facts.networks for each in network.subnets}
    for name in lookup.subnets:
        if not lookup.names:
            yield Finding(
                "ORCH226",
                "network.subnets",
                f"the subnet {name} is not used: the networks are made with the fleet",
                hint="give its network too: `vpc`",
            )
        elif name not in names and not facts.missing:
            yield Finding(
                "ORCH226",
                "network.subnets",
                f"none of the given networks has a subnet {name} in {facts.region}",
                detail=f"they have {', '.join(sorted(names)) or 'none'}",
            )


def places(lookup: NetworkLookup) -> Iterator[tuple[str, str]]:
    """Each given network with the property that gives it."""
    if lookup.vpc:
        yield lookup.path("vpc"), lookup.vpc
    for index, name in enumerate(lookup.extras):
        yield lookup.path("extra_vpcs", index), name
    for index, name in enumerate(lookup.roce):
        yield lookup.path("roce_vpcs", index), name


def _plain(
    lookup: NetworkLookup, candidate: CloudCandidate, shape: Shape, facts: GcpFacts
) -> Iterator[Finding]:
    """Networks of gVNICs: no RDMA profile, a subnet in the region, frames as large as the fabric needs."""
    rows = [(lookup.path("vpc"), lookup.vpc, "host")] if lookup.vpc else []
    for index, name in enumerate(lookup.extras[: shape.extras]):
        role = "host" if index < shape.hosts - 1 else "data"
        rows.append((lookup.path("extra_vpcs", index), name, role))
    for path, name, role in rows:
        network = facts.network(name)
        if network is None:
            continue
        if network.profile:
            yield Finding(
                "ORCH226",
                path,
                f"the VPC {name} has the profile {network.profile}: it takes RDMA interfaces only",
            )
            continue
        if not network.subnets:
            yield Finding(
                "ORCH227",
                path,
                f"the VPC {name} has no subnet in {candidate.region}",
                hint="add one, or narrow `regions` to those with one",
            )
        yield from _mtu(path, network, role, shape)
        if lookup.host_project and not network.within:
            yield Finding(
                "ORCH226",
                path,
                f"no firewall rule of {lookup.host_project} lets nodes in the VPC {name} reach each other",
                detail="rules of a shared network are for its own project to make",
                hint="have a rule made there that allows all TCP, UDP and ICMP from its subnets' ranges",
            )


def _mtu(path: str, network: Network, role: str, shape: Shape) -> Iterator[Finding]:
    needed = shape.data_mtu if role == "data" else shape.host_mtu
    if network.mtu >= needed or not shape.fast:
        return
    title = getattr(fabric(shape.fabric), "title", shape.fabric)
    yield Finding(
        "ORCH226",
        path,
        f"the VPC {network.name} has an MTU of {network.mtu}, {shape.type} needs {needed}",
        detail=f"{title} sends frames of that size; smaller ones are dropped or cost most of its bandwidth"
        if role == "data"
        else "IP traffic between the nodes would be slower than it could be",
        hint=f"gcloud compute networks update {network.name} --mtu={needed}, with its instances stopped",
        severity=Severity.ERROR if role == "data" else Severity.WARNING,
    )


def _rdma(
    lookup: NetworkLookup, candidate: CloudCandidate, shape: Shape, facts: GcpFacts
) -> Iterator[Finding]:
    name = next(iter(lookup.roce), None)
    if name is None:
        return
    path = lookup.path("roce_vpcs", 0)
    if len(lookup.roce) > 1:
        yield Finding(
            "ORCH226",
            lookup.path("roce_vpcs", 1),
            "all RDMA interfaces of a node are in one network",
            hint="keep the one of the nodes' zone",
        )
        return
    if not shape.rdmas:
        yield Finding(
            "ORCH226",
            path,
            f"{shape.type} has no RDMA interfaces here: the network is not used",
            severity=Severity.NOTE,
        )
        return
    network = facts.network(name)
    if network is None:
        return
    needed = f"{candidate.zone}-{shape.profile}"
    if network.profile is None:
        yield Finding(
            "ORCH226",
            path,
            f"the VPC {network.name} has no RDMA network profile",
            detail="a profile is given to a network when it is created",
            hint=f"create one with --network-profile={needed}, or remove the line to have it created",
        )
    elif network.profile != needed:
        zone = network.profile.partition("-vpc-")[0]
        other = zone != candidate.zone
        yield Finding(
            "ORCH225",
            path,
            f"the VPC {network.name} is of the zone {zone}, the fleet goes to {candidate.zone}"
            if other
            else f"the VPC {network.name} has the profile {network.profile}, {shape.type} needs {needed}",
            detail="an RDMA network serves the one zone of its profile",
            hint=f"name a network of {candidate.zone}, write `availability_zones: [{zone}]`, or remove it"
            if other
            else f"name a network of the profile {needed}, or remove the line",
        )
    elif len(network.subnets) < shape.rdma_subnets:
        yield Finding(
            "ORCH222",
            path,
            f"{shape.type} needs {shape.rdma_subnets} subnets in its RDMA network, "
            f"{network.name} has {len(network.subnets)} in {candidate.region}",
            detail=f"one for each of the {shape.rdmas} RDMA interfaces of a node",
            hint=f"add {shape.rdma_subnets - len(network.subnets)}, or remove the line to have them created",
        )


def _egress(lookup: NetworkLookup, facts: GcpFacts) -> Iterator[Finding]:
    network = facts.network(lookup.vpc) if lookup.vpc else None
    if network is None or network.nat or not lookup.nat_check or lookup.public_ips is True:
        return
    yield Finding(
        "ORCH226",
        lookup.path("vpc"),
        f"no Cloud NAT leads out of the VPC {network.name} in {facts.region}: nodes could fetch no image",
        hint="add a Cloud NAT, or write `nat_check: false` in orch.yml where another way leads out",
        severity=Severity.WARNING,
    )


def overlap_findings(vpcs: Sequence[Vpc]) -> Iterator[Finding]:
    """Ranges of one node's interfaces must not overlap, in whichever networks they are.

    Source: Google Cloud "Multiple network interfaces", specifications.
    """
    ranges = [
        (vpc.name, ipaddress.ip_network(each.cidr)) for vpc in vpcs for each in vpc.subnets if each.cidr
    ]
    for place, (name, one) in enumerate(ranges):
        for other_name, other in ranges[place + 1 :]:
            if one.version == other.version and one.overlaps(other):
                yield Finding(
                    "ORCH226",
                    "network",
                    f"two interfaces of a node would have overlapping ranges: {one} of {name}, "
                    f"{other} of {other_name}",
                    hint="give networks whose ranges differ; made ones use 10.0.0.0/11 and 10.64.0.0/13",
                )
                return


def shared_findings(shared: NetworkStack | None, network: PriorState) -> Iterator[Finding]:
    """Whether the networks that are there already are for the same kind of nodes."""
    prior_shape = network.pins.get("shape")
    if shared is not None and prior_shape is not None and prior_shape != shared.shape:
        yield Finding(
            "ORCH226",
            "network.name",
            f"the networks '{shared.name}' were made for other nodes",
            detail=f"they are {prior_shape}, this fleet needs {shared.shape} "
            "(interfaces x MTU for IP traffic + for the GPUs + RDMA)",
            hint="share networks between fleets of one machine type only",
        )


def lock_findings(networks: Networks, file_systems: Sequence[FileSystem]) -> Iterator[Finding]:
    """A warning where a given network has to let a Filestore reach the nodes: locks of NFS 3 call back."""
    if file_systems and networks.first.origin == "given":
        yield Finding(
            "ORCH226",
            "network",
            "file locks across nodes need the given network to let the Filestore reach them",
            detail="NFS 3 answers a lock by a connection to the node; orch makes no rules in given networks",
            hint="allow TCP and UDP from the Filestore's addresses to the nodes, where jobs lock files",
            severity=Severity.WARNING,
        )


# GCP keeps the first two addresses of a subnet and the last two. Source: Google Cloud "Subnets".
KEPT_ADDRESSES = 4


def address_findings(lookup: NetworkLookup, networks: Networks, new: int) -> Iterator[Finding]:
    """Whether given subnets hold the nodes: each takes one address per interface."""
    paths = dict(reversed([(name, path) for path, name in places(lookup)]))
    for vpc in networks.vpcs:
        for each in vpc.subnets if vpc.origin == "given" else ():
            if each.cidr is None:
                continue
            size = ipaddress.ip_network(each.cidr).num_addresses - KEPT_ADDRESSES
            if size < new:
                yield Finding(
                    "ORCH220",
                    paths.get(vpc.name, "network"),
                    f"{new} nodes need {new} addresses, {each.name} ({each.cidr}) has {size} at most",
                    detail=f"GCP keeps {KEPT_ADDRESSES} addresses of each subnet",
                    hint="give a network with a larger subnet, or have one made",
                )
