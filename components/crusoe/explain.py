"""What the properties of Crusoe's resources say of a fleet, what a plan's nodes are in few words, and why.

Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.components.cloud.plan import Bastion
from orch.components.cloud.ssh_access import AccessMethod, ssh_reasons
from orch.components.crusoe.account.facts import CrusoeFacts
from orch.components.crusoe.candidates import CrusoeCandidate, machines
from orch.components.crusoe.plan import CrusoePlan, Network
from orch.components.explain import ChangeRow, Explained
from orch.components.idleness import IdleRule
from orch.components.lifetime import Lifetime
from orch.components.request import PriorState
from orch.spec.models import Fleet

PACKAGE = "orch-crusoe"
INSTANCE = f"{PACKAGE}:index:Instance"
PARTITION = f"{PACKAGE}:index:IbPartition"
GANG = f"{PACKAGE}:index:Gang"

EXPLAINED = Explained(
    traits={
        "project": "project",
        "region": "location",
        "fabric": "InfiniBand network",
        "instance_type": "type",
        "reservation": "reservation",
        "image": "machine image",
        "disk": "data disk",
        "placement": "placement",
    },
    new_nodes=frozenset({"fabric", "instance_type", "reservation", "image", "disk", "placement"}),
    rows=(
        ChangeRow(INSTANCE, r"layout", None),
        ChangeRow(INSTANCE, r"script|public_key|waits", None),
        ChangeRow(INSTANCE, r"spec\.type", "instance_type"),
        ChangeRow(INSTANCE, r"spec\.location", "region"),
        ChangeRow(INSTANCE, r"spec\.image", "image"),
        ChangeRow(INSTANCE, r"spec\.disks.*", "disk"),
        ChangeRow(INSTANCE, r"spec\.host_channel_adapters.*", "fabric"),
        ChangeRow(INSTANCE, r"spec\.reservation_specification.*", "reservation"),
        ChangeRow(GANG, r"instances(\..*|\[.*\])?", None),
        ChangeRow(PARTITION, r"spec\.ib_network_id", "fabric"),
        ChangeRow(f"{PACKAGE}:index:Disk", r"spec\.size", "disk"),
    ),
)


def traits(plan: CrusoePlan) -> dict[str, str]:
    """What the nodes of a plan are."""
    return {
        "project": plan.project,
        "region": plan.region,
        "fabric": plan.zone if plan.ib_network else "none",
        "instance_type": plan.instance_type,
        "reservation": plan.reservation or "none",
        "image": plan.image,
        "disk": f"{plan.disk_gib} GiB" if plan.disk_gib else "local disks",
        "placement": plan.placement,
    }


def fabric_reasons(candidate: CrusoeCandidate, facts: CrusoeFacts, nodes: int) -> Iterator[str]:
    if candidate.infiniband is None:
        return
    if candidate.kept:
        why = "where it is: a partition never moves"
    elif facts.room is None:
        why = "whose stock is not known"
    elif facts.room < nodes:
        why = f"which has room for {facts.room} now, and no network has room for all {nodes}"
    else:
        why = f"which has room for {facts.room} now"
    yield f"InfiniBand: one partition for this fleet in the network {candidate.infiniband}, {why}"


def ending_reasons(fleet: Fleet, idle: IdleRule | None, ending: Lifetime | None) -> Iterator[str]:
    """When nodes end themselves, and what that leaves."""
    if ending is not None:
        yield ending.reason
    if idle is not None or ending is not None:
        left = "its disks are billed until the next `up` or `orch reconcile`"
        paid = "; what a reservation costs is paid on" if fleet.reservation is not None else ""
        yield f"a node that ended itself is stopped: {left}{paid}"


def capacity_reasons(
    fleet: Fleet, candidate: CrusoeCandidate, facts: CrusoeFacts, new: int, *, whole: bool
) -> Iterator[str]:
    if fleet.reservation is not None:
        unknown = new and facts.reservations is None
        more = ", which was not looked at: this access key may not list reservations" if unknown else ""
        yield f"capacity: from the reservation {fleet.reservation} alone{more}"
    else:
        yield "capacity: from a reservation that fits, which Crusoe looks for, else on demand"
    if not machines()[candidate.type.name].sold:
        yield f"whether {candidate.type.name} is sold without a reservation is not known"
    if whole:
        yield "each VM is made by a call of its own; where one is out of stock all are taken back"


def network_reasons(
    network: Network, access: AccessMethod, bastion: Bastion | None, *, jumps: int
) -> Iterator[str]:
    if network.subnet is None:
        made = "made with the fleet, whose firewall lets nobody in from outside but to SSH"
    else:
        made = f"in the subnet {network.subnet}, whose firewall rules decide who comes in"
    yield f"network: {made}; VMs have public addresses"
    yield from ssh_reasons(access, bastion, jumps=jumps)


def disk_reasons(plan_disk: int | None) -> Iterator[str]:
    if plan_disk is None:
        yield "disks: images and containers of jobs lie on the local disks, which a stop erases"
    else:
        yield f"disks: images and containers of jobs lie on a disk of {plan_disk} GiB that goes with its node"


def image_reasons(facts: CrusoeFacts, previous: PriorState) -> Iterator[str]:
    if facts.image is not None:
        pinned = previous.pins.get("image") == facts.image.name
        how = "pinned; `up --upgrade` looks for a newer one" if pinned else "pinned from now on"
        yield f"image: {facts.image.name}, {how}"


def rank_reasons(fleet: Fleet, *, by_topology: bool) -> Iterator[str]:
    if fleet.topology == "rank-ordered" and by_topology:
        yield "ranks: nodes of one rail-optimised pod first, which Crusoe tells of"
    elif fleet.topology == "rank-ordered":
        yield "ranks: by node number; Crusoe tells where machines of a partition stand, of others nothing"


def unpriced(price: float | None, bastion: Bastion | None, disk: int | None) -> Iterator[str]:
    """What costs money and has no price in the catalogue."""
    if price is None:
        yield "nodes"
    if bastion is not None and bastion.price is None:
        yield "bastion"
    yield "public IPv4 addresses"
    if disk is not None:
        yield "data disks"
