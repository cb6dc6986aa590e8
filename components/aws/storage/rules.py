"""Who reaches a file system, and whom its servers reach: rules of security groups. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network

from orch.components.aws.account.facts import Subnet
from orch.components.aws.plan import ExistingNetwork, NewNetwork, SecurityGroups, SecurityRule
from orch.components.file_systems import FileSystem
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding

NFS = 2049
# Source: FSx for Lustre user guide, "File system access control with Amazon VPC".
LUSTRE = (988, (1018, 1023))

INGRESS: Mapping[str, tuple[SecurityRule, ...]] = {
    "efs": (SecurityRule("nodes", NFS, "NFS from the nodes"),),
    "fsx-lustre": tuple(
        SecurityRule(peer, port, f"Lustre from {words}")
        for peer, words in (("nodes", "the nodes"), ("itself", "its other servers"))
        for port in LUSTRE
    ),
}
# EFS begins no connection, and answers are let through.
EGRESS: Mapping[str, tuple[SecurityRule, ...]] = {
    "efs": (),
    "fsx-lustre": tuple(
        SecurityRule(peer, port, f"Lustre to {words}")
        for peer, words in (("nodes", "the nodes"), ("itself", "its other servers"))
        for port in LUSTRE
    ),
}


def open_to_servers(
    groups: SecurityGroups,
    network: NewNetwork | ExistingNetwork,
    subnets: Sequence[Subnet],
    file_systems: Sequence[FileSystem],
) -> SecurityGroups:
    """The security group of the nodes with what servers of Lustre begin there; given groups stay as they are.

    The servers are named by their addresses: two groups whose rules name each other could be neither made nor
    removed at once. `subnets`: those of a given network.
    """
    if groups.name is None or all(each.type != "fsx-lustre" for each in file_systems):
        return groups
    why = "Lustre from the servers of the file system"
    rules = tuple(SecurityRule(cidr, port, why) for cidr in _addresses(network, subnets) for port in LUSTRE)
    return replace(groups, ingress=(*groups.ingress, *rules))


def server_findings(
    groups: SecurityGroups,
    network: NewNetwork | ExistingNetwork,
    subnets: Sequence[Subnet],
    file_systems: Sequence[FileSystem],
) -> Iterator[Finding]:
    """A warning where security groups are given that have to let servers of Lustre in."""
    if groups.name is not None or all(each.type != "fsx-lustre" for each in file_systems):
        return
    first, last = LUSTRE[1]
    yield Finding(
        "ORCH226",
        "network",
        "the given security groups have to let the servers of the FSx for Lustre in",
        detail="the servers open connections to the nodes; orch does not change groups that are given",
        hint=f"allow TCP {LUSTRE[0]} and {first}-{last} from {', '.join(_addresses(network, subnets))}",
        severity=Severity.WARNING,
    )


def _addresses(network: NewNetwork | ExistingNetwork, subnets: Sequence[Subnet]) -> tuple[str, ...]:
    """Where the servers are: in the nodes' subnet. Of a given VPC it is all of its first range, for a fleet
    may move to another subnet, which its file system does not; and a subnet that lies outside of that."""
    if isinstance(network, NewNetwork):
        return (network.nodes_cidr,)
    own = (each.cidr for each in subnets if each.id == network.subnet)
    whole = IPv4Network(network.cidr)
    outside = (each for each in own if not IPv4Network(each).subnet_of(whole))
    return (network.cidr, *outside)
