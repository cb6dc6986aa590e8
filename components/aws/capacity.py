"""What the nodes are taken from, and whether there is enough of it: reservations, quotas, money. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orch.catalog.aws.machines import Nics
from orch.components.aws.account.facts import Allowance, AwsFacts, Reservation
from orch.components.aws.candidates import CloudCandidate
from orch.components.aws.plan import AwsPlan, Capacity, PlacementGroup
from orch.components.cloud.findings import short_reservation
from orch.components.cloud.node_groups import OtherGroups
from orch.components.idleness import idle_rule
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet


@dataclass(frozen=True)
class Demand:
    """How many nodes, and how many of them are new."""

    nodes: int
    new: int
    interfaces: int


def capacity(fleet: Fleet, candidate: CloudCandidate, facts: AwsFacts, demand: Demand) -> Capacity:
    """From a given reservation, from the spot market, or on demand.

    On-demand fleets that are all or nothing take a reservation of their own first: EC2 grants it whole or
    refuses it at once, so a zone without room costs seconds and leaves no instance behind. Not where idle
    nodes end themselves: nobody would end what the reservation costs.
    """
    reservation = facts.reservation
    if reservation is not None:
        return Capacity(id=reservation.id, market="block" if reservation.kind == "block" else "on-demand")
    if candidate.spot:
        limit = None if fleet.max_price is None else f"{float(fleet.max_price):g}"
        return Capacity(market="spot", max_price=limit)
    if fleet.gang == "all-or-nothing" and demand.nodes > 0 and idle_rule(fleet) is None:
        return Capacity(reserved_nodes=demand.nodes)
    return Capacity()


def placement_group(fleet: Fleet, facts: AwsFacts, each: Nics, base: str) -> PlacementGroup | None:
    """The cluster placement group; none where a reservation decides the place of its instances."""
    if fleet.placement != "cluster" or not each.cluster:
        return None
    reservation = facts.reservation
    if reservation is None:
        return PlacementGroup(base, new=True)
    return None if reservation.group is None else PlacementGroup(reservation.group, new=False)


def group_reason(fleet: Fleet, facts: AwsFacts, each: Nics, group: PlacementGroup | None) -> str | None:
    if fleet.placement != "cluster":
        return None
    if group is not None:
        whose = "of its own" if group.new else "that the reservation lies in"
        return f"one cluster placement group {whose} ({group.name}): all nodes in one zone, close together"
    reservation = facts.reservation
    if reservation is not None and reservation.kind == "block":
        return "no placement group: a Capacity Block takes none, its instances are close together already"
    if reservation is not None:
        return f"no placement group: the reservation {reservation.id} was made outside of one"
    return f"no placement group: types such as {each.type} cannot be in one"


# What is found out about it


def reservation_findings(fleet: Fleet, facts: AwsFacts, demand: Demand) -> Iterator[Finding]:
    """Whether the given reservation is there, holds all nodes, and until when."""
    reservation = facts.reservation
    if fleet.reservation is None:
        return
    if reservation is None:
        yield Finding(
            "ORCH322",
            "reservation",
            f"the account has no reservation {fleet.reservation} in {facts.region}",
            hint="`aws ec2 describe-capacity-reservations` lists ids, also those of Capacity Blocks",
        )
        return
    if reservation.tenancy != "default":
        yield Finding(
            "ORCH323",
            "reservation",
            f"the reservation {reservation.id} is for {reservation.tenancy} tenancy, "
            "nodes are of default tenancy",
            detail="AWS would refuse the launch",
            hint="name a reservation of default tenancy",
        )
    if reservation.state not in _USABLE:
        yield Finding(
            "ORCH322",
            "reservation",
            f"the reservation {reservation.id} is {reservation.state}",
            hint="name one that is active",
        )
        return
    new = demand.new if reservation.state == "active" else 0
    yield from short_reservation(reservation.total, reservation.available, nodes=demand.nodes, new=new)
    yield from _reservation_warnings(fleet, reservation)


_USABLE = ("active", "scheduled", "pending", "payment-pending", "assessing", "delayed")


def _reservation_warnings(fleet: Fleet, reservation: Reservation) -> Iterator[Finding]:
    block = reservation.kind == "block"
    if block and fleet.placement == "cluster":
        yield Finding(
            "ORCH214",
            "placement",
            "a Capacity Block takes no placement group: none is made",
            detail="its instances are in one UltraCluster, close together already",
            severity=Severity.NOTE,
        )
    elif fleet.placement == "cluster" and reservation.group is None:
        yield Finding(
            "ORCH215",
            "reservation",
            "the reservation was made outside a placement group: its instances may lie apart",
            hint="make the reservation inside a cluster placement group for the full speed",
            severity=Severity.WARNING,
        )
    if reservation.state != "active" and reservation.start is not None:
        yield Finding(
            "ORCH217",
            "reservation",
            f"the reservation begins at {reservation.start}: no node starts before",
            severity=Severity.WARNING,
        )
    if reservation.end is not None:
        yield Finding(
            "ORCH216",
            "reservation",
            f"the reservation ends at {reservation.end}",
            detail="the instances of a Capacity Block are taken away 30 minutes before"
            if block
            else "nodes run on after it, without a claim to the capacity",
            severity=Severity.WARNING,
        )


def quota_findings(
    candidate: CloudCandidate,
    facts: AwsFacts,
    demand: Demand,
    other_groups: OtherGroups[AwsPlan, AwsFacts],
    addresses: int,
) -> Iterator[Finding]:
    """Whether the account's quotas hold the fleet beside what others use; what was not asked does.

    A given reservation counts already, and Capacity Blocks have quotas of their own.
    """
    each, vcpus = candidate.type, facts.vcpus if facts.reservation is None else None
    if vcpus is not None and each.vcpus:
        others = sum(
            len(other.plan.nodes) * (other.plan.cpus or 0)
            for other in other_groups.planned
            if other.facts.vcpus is not None and other.facts.vcpus.code == vcpus.code
        )
        needed = demand.nodes * each.vcpus
        if others + needed + (vcpus.used or 0) > vcpus.limit:
            words = f"{demand.nodes} x {each.name} need {needed} vCPUs{_others_phrase(others)}"
            yield _over(vcpus, "ORCH310", "nodes", words)
    limit = facts.addresses
    if limit is not None and addresses and (limit.used or 0) + addresses > limit.limit:
        yield _over(limit, "ORCH311", "network", f"the NAT gateway needs {addresses} Elastic IP")
    limit = facts.interfaces
    others = sum(len(other.plan.nodes) * len(other.plan.interfaces) for other in other_groups.planned)
    needed = demand.nodes * demand.interfaces
    if limit is not None and others + needed + (limit.used or 0) > limit.limit:
        needs = f"{demand.nodes} nodes of {demand.interfaces} network interfaces need {needed}"
        yield _over(limit, "ORCH312", "nodes", needs + _others_phrase(others))


def _others_phrase(others: int) -> str:
    return f" beside {others} of the fleet's other nodes" if others else ""


def _over(quota: Allowance, code: str, path: str, needed: str) -> Finding:
    used = f", {quota.used} in use" if quota.used else ""
    return Finding(
        code,
        path,
        f"{needed}, the account's quota is {quota.limit:g}{used}",
        detail=f"quota {quota.code}, {quota.name}",
        hint="ask for more in the Service Quotas console, or ask for less here",
    )
