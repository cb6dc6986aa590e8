"""Whether given networks serve: enough of them, distinct, of the right kind, zone and MTU. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.catalog.fabrics import fabric
from orch.catalog.gcp.machines import Shape
from orch.components.gcp.account.facts import GcpFacts, Network
from orch.components.gcp.account.lookups import NetworkLookup
from orch.components.gcp.candidates import CloudCandidate
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding


def given_findings(
    wanted: NetworkLookup, candidate: CloudCandidate, shape: Shape, facts: GcpFacts
) -> Iterator[Finding]:
    """What is wrong with them, each at the property that gives it."""
    yield from _count(wanted, shape)
    yield from _distinct(wanted, shape)
    yield from _there(wanted, facts)
    yield from _plain(wanted, candidate, shape, facts)
    yield from _rdma(wanted, candidate, shape, facts)
    yield from _egress(wanted, facts)
    yield from _subnets(wanted, facts)
    if wanted.block.security_groups:
        yield Finding(
            "ORCH226",
            "network.security_groups",
            "GCP has no security groups: firewall rules belong to a network",
            hint="remove it: rules for the nodes among themselves are made by tag",
            severity=Severity.WARNING,
        )
    if wanted.shared and wanted.names:
        yield Finding(
            "ORCH226",
            "network.name",
            "networks that are given cannot be shared under a name",
            detail=f"{', '.join(wanted.names)} would not be made",
            hint="remove `name`, or the given networks",
        )


def _count(wanted: NetworkLookup, shape: Shape) -> Iterator[Finding]:
    """Too few networks would leave interfaces away, and bandwidth with them, without a word."""
    listed, needed = len(wanted.extras), shape.extras
    if not wanted.extras or listed == needed:
        return
    path = wanted.path("extra_vpcs")
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
    known = fabric(shape.fabric)
    what = known.title if known else shape.fabric
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


def _distinct(wanted: NetworkLookup, shape: Shape) -> Iterator[Finding]:
    """Interfaces that are no RDMA interfaces must be in networks that all differ.

    Source: Google Cloud "Multiple network interfaces", specifications.
    """
    seen: dict[str, str] = {wanted.vpc: "`vpc`"} if wanted.vpc else {}
    for index, name in enumerate(wanted.extras[: shape.extras]):
        if name in seen:
            yield Finding(
                "ORCH226",
                wanted.path("extra_vpcs", index),
                f"two interfaces of a node would be in the VPC {name}",
                detail=f"it is given by {seen[name]} already; each interface is in a network of its own",
                hint="name another network",
            )
        seen.setdefault(name, f"`extra_vpcs[{index}]`")
    for index, name in enumerate(wanted.roce):
        if name in seen:
            yield Finding(
                "ORCH226",
                wanted.path("roce_vpcs", index),
                f"the VPC {name} is given by {seen[name]} too",
                detail="a network with an RDMA profile takes RDMA interfaces only",
                hint="name the network of the zone's RDMA profile",
            )


def _there(wanted: NetworkLookup, facts: GcpFacts) -> Iterator[Finding]:
    for path, name in places(wanted):
        if name in facts.missing:
            where = wanted.host_project or facts.project
            yield Finding("ORCH226", path, f"the project {where} has no VPC {name}")


def _subnets(wanted: NetworkLookup, facts: GcpFacts) -> Iterator[Finding]:
    """Written subnets are chosen among those of the given networks."""
    known = {each.name for network in facts.networks for each in network.subnets}
    for name in wanted.subnets:
        if not wanted.names:
            yield Finding(
                "ORCH226",
                "network.subnets",
                f"the subnet {name} is not used: the networks are made with the fleet",
                hint="give its network too: `vpc`",
            )
        elif name not in known and not facts.missing:
            yield Finding(
                "ORCH226",
                "network.subnets",
                f"none of the given networks has a subnet {name} in {facts.region}",
                detail=f"they have {', '.join(sorted(known)) or 'none'}",
            )


def places(wanted: NetworkLookup) -> Iterator[tuple[str, str]]:
    """Each given network with the property that gives it."""
    if wanted.vpc:
        yield wanted.path("vpc"), wanted.vpc
    for index, name in enumerate(wanted.extras):
        yield wanted.path("extra_vpcs", index), name
    for index, name in enumerate(wanted.roce):
        yield wanted.path("roce_vpcs", index), name


def _plain(
    wanted: NetworkLookup, candidate: CloudCandidate, shape: Shape, facts: GcpFacts
) -> Iterator[Finding]:
    """Networks of gVNICs: no RDMA profile, a subnet in the region, frames as large as the fabric needs."""
    given = [(wanted.path("vpc"), wanted.vpc, "host")] if wanted.vpc else []
    for index, name in enumerate(wanted.extras[: shape.extras]):
        role = "host" if index < shape.hosts - 1 else "data"
        given.append((wanted.path("extra_vpcs", index), name, role))
    for path, name, role in given:
        known = facts.network(name)
        if known is None:
            continue
        if known.profile:
            yield Finding(
                "ORCH226",
                path,
                f"the VPC {name} has the profile {known.profile}: it takes RDMA interfaces only",
            )
            continue
        if not known.subnets:
            yield Finding(
                "ORCH227",
                path,
                f"the VPC {name} has no subnet in {candidate.region}",
                hint="add one, or narrow `regions` to those with one",
            )
        yield from _mtu(path, known, role, shape)
        if wanted.host_project and not known.within:
            yield Finding(
                "ORCH226",
                path,
                f"no firewall rule of {wanted.host_project} lets nodes in the VPC {name} reach each other",
                detail="rules of a shared network are for its own project to make",
                hint="have a rule made there that allows all TCP, UDP and ICMP from its subnets' ranges",
            )


def _mtu(path: str, known: Network, role: str, shape: Shape) -> Iterator[Finding]:
    needed = shape.data_mtu if role == "data" else shape.host_mtu
    if known.mtu >= needed or not shape.fast:
        return
    title = getattr(fabric(shape.fabric), "title", shape.fabric)
    yield Finding(
        "ORCH226",
        path,
        f"the VPC {known.name} has an MTU of {known.mtu}, {shape.type} needs {needed}",
        detail=f"{title} sends frames of that size; smaller ones are dropped or cost most of its bandwidth"
        if role == "data"
        else "IP traffic between the nodes would be slower than it could be",
        hint=f"gcloud compute networks update {known.name} --mtu={needed}, with its instances stopped",
        severity=Severity.ERROR if role == "data" else Severity.WARNING,
    )


def _rdma(
    wanted: NetworkLookup, candidate: CloudCandidate, shape: Shape, facts: GcpFacts
) -> Iterator[Finding]:
    name = next(iter(wanted.roce), None)
    if name is None:
        return
    path = wanted.path("roce_vpcs", 0)
    if len(wanted.roce) > 1:
        yield Finding(
            "ORCH226",
            wanted.path("roce_vpcs", 1),
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
    known = facts.network(name)
    if known is None:
        return
    needed = f"{candidate.zone}-{shape.profile}"
    if known.profile is None:
        yield Finding(
            "ORCH226",
            path,
            f"the VPC {known.name} has no RDMA network profile",
            detail="a profile is given to a network when it is created",
            hint=f"create one with --network-profile={needed}, or remove the line to have it created",
        )
    elif known.profile != needed:
        zone = known.profile.partition("-vpc-")[0]
        other = zone != candidate.zone
        yield Finding(
            "ORCH225",
            path,
            f"the VPC {known.name} is of the zone {zone}, the fleet goes to {candidate.zone}"
            if other
            else f"the VPC {known.name} has the profile {known.profile}, {shape.type} needs {needed}",
            detail="an RDMA network serves the one zone of its profile",
            hint=f"name a network of {candidate.zone}, write `availability_zones: [{zone}]`, or remove it"
            if other
            else f"name a network of the profile {needed}, or remove the line",
        )
    elif len(known.subnets) < shape.rdma_subnets:
        yield Finding(
            "ORCH222",
            path,
            f"{shape.type} needs {shape.rdma_subnets} subnets in its RDMA network, "
            f"{known.name} has {len(known.subnets)} in {candidate.region}",
            detail=f"one for each of the {shape.rdmas} RDMA interfaces of a node",
            hint=f"add {shape.rdma_subnets - len(known.subnets)}, or remove the line to have them created",
        )


def _egress(wanted: NetworkLookup, facts: GcpFacts) -> Iterator[Finding]:
    known = facts.network(wanted.vpc) if wanted.vpc else None
    if known is None or known.nat or not wanted.nat_check or wanted.public_ips is True:
        return
    yield Finding(
        "ORCH226",
        wanted.path("vpc"),
        f"no Cloud NAT leads out of the VPC {known.name} in {facts.region}: nodes could fetch no image",
        hint="add a Cloud NAT, or write `nat_check: false` in orch.yml where another way leads out",
        severity=Severity.WARNING,
    )
