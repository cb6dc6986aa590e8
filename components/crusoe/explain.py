"""What the properties of Crusoe's resources say of a fleet, what a plan's nodes are in few words, and why.

Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.components.cloud.machines.ssh_access import AccessMethod, ssh_reasons
from orch.components.cloud.plan import Bastion
from orch.components.cloud.reasons import room_words
from orch.components.crusoe.account.facts import CrusoeFacts
from orch.components.crusoe.candidates import CrusoeCandidate, machines
from orch.components.crusoe.plan import CrusoePlan, Network
from orch.components.explain import ChangeRow, Explained
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
    else:
        why = "whose stock is not known" if facts.room is None else room_words(facts.room, nodes, "network")
    yield f"InfiniBand: one partition for this fleet in the network {candidate.infiniband}, {why}"


def left_words(fleet: Fleet) -> str:
    """Return what is billed of a node that ended itself."""
    paid = "; what a reservation costs is paid on" if fleet.reservation is not None else ""
    return f"its disks are billed until the next `up` or `orch reconcile`{paid}"


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
