"""What the properties of Nebius's resources say of a fleet, what a plan's nodes are in few words, and why.

Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.components.cloud.plan import Bastion
from orch.components.cloud.ssh_access import AccessMethod, ssh_reasons
from orch.components.explain import ChangeRow, Explained
from orch.components.idleness import IdleRule
from orch.components.lifetime import Lifetime
from orch.components.nebius.account.facts import NebiusFacts
from orch.components.nebius.candidates import NebiusCandidate
from orch.components.nebius.plan import NebiusPlan, Network
from orch.components.request import PriorState
from orch.spec.models import Fleet

PACKAGE = "orch-nebius"
INSTANCE = f"{PACKAGE}:index:Instance"
GANG = f"{PACKAGE}:index:Gang"
_ANY = ".*"

EXPLAINED = Explained(
    traits={
        "project": "project",
        "region": "region",
        "fabric": "InfiniBand fabric",
        "instance_type": "type",
        "market": "capacity",
        "reservation": "reservation",
        "image": "machine image",
        "disk": "root disk",
        "addresses": "public addresses",
        "placement": "placement",
        "tags": "labels",
    },
    new_nodes=frozenset(
        {"fabric", "instance_type", "market", "reservation", "image", "disk", "addresses", "placement"}
    ),
    rows=(
        ChangeRow(INSTANCE, r"layout", None),
        ChangeRow(INSTANCE, r"user_data|waits", None),
        ChangeRow(INSTANCE, r"spec(\..*|\[.*\])?\.size_gibibytes", "disk", " GB"),
        ChangeRow(INSTANCE, r"spec\.boot_disk.*", "disk"),
        ChangeRow(INSTANCE, r"spec\.resources.*", "instance_type"),
        ChangeRow(INSTANCE, r"spec\.network_interfaces.*", "addresses"),
        ChangeRow(INSTANCE, r"spec\.(preemptible|recovery_policy|follows_spot_price).*", "market"),
        ChangeRow(INSTANCE, r"spec\.reservation_policy.*", "reservation"),
        ChangeRow(INSTANCE, r"spec\.gpu_cluster.*", "fabric"),
        ChangeRow(GANG, r"instances(\..*|\[.*\])?", None),
        ChangeRow(_ANY, r"spec\.infiniband_fabric", "fabric"),
        ChangeRow(_ANY, r"project", "project"),
        ChangeRow(_ANY, r'labels(\..*|\[".*"\])?', "tags"),
    ),
)


def traits(plan: NebiusPlan) -> dict[str, str]:
    """What the nodes of a plan are."""
    tags = {key: value for key, value in plan.labels.items() if not key.startswith("orch-")}
    return {
        "project": plan.project,
        "region": plan.region,
        "fabric": plan.infiniband or "none",
        "instance_type": plan.instance_type,
        "market": "preemptible" if plan.spot else "on-demand",
        "reservation": plan.reservation or "none",
        "image": plan.image,
        "disk": f"{plan.disk.size_gb} GB {plan.disk.type}",
        "addresses": "one each" if plan.public else "none",
        "placement": plan.placement,
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "none",
    }


def fabric_reasons(candidate: NebiusCandidate, facts: NebiusFacts, nodes: int) -> Iterator[str]:
    if candidate.infiniband is None:
        return
    if candidate.kept:
        why = "where its GPU cluster is: a cluster never moves"
    elif facts.stock is None:
        why = "Nebius does not tell its stock"
    elif facts.stock < nodes:
        why = f"which has room for {facts.stock} now, and no fabric has room for all {nodes}"
    else:
        why = f"which has room for {facts.stock} now"
    yield f"InfiniBand: one GPU cluster on the fabric {candidate.infiniband}, {why}"


def ending_reasons(idle: IdleRule | None, ending: Lifetime | None) -> Iterator[str]:
    """When nodes end themselves, and what that leaves."""
    if ending is not None:
        yield ending.reason
    if idle is not None or ending is not None:
        left = "its root disk is billed until the next `up` or `orch reconcile`"
        yield f"a node that ended itself is stopped: {left}"


def capacity_reasons(fleet: Fleet, candidate: NebiusCandidate, *, whole: bool) -> Iterator[str]:
    if fleet.reservation is not None:
        yield f"capacity: from the capacity block group {fleet.reservation} alone; orch buys none"
    elif candidate.spot:
        yield "capacity: preemptible, which Nebius may stop at any time; the next `up` makes such a node anew"
    elif whole:
        yield "capacity: a machine that stops again is how Nebius lacks some; then all are taken back"


def network_reasons(
    network: Network, access: AccessMethod, bastion: Bastion | None, *, jumps: int
) -> Iterator[str]:
    made = "made with the fleet" if network.subnet is None else f"in the subnet {network.subnet}"
    addresses = "public addresses" if access.public else "no public addresses"
    rules = "" if network.groups is None else "; the given security groups decide who comes in"
    yield f"network: {made}, {addresses}{rules}"
    yield from ssh_reasons(access, bastion, jumps=jumps)


def image_reasons(facts: NebiusFacts, previous: PriorState) -> Iterator[str]:
    if facts.image is None:
        return
    pinned = previous.pins.get("image") == facts.image.id
    how = "pinned; `up --upgrade` looks for a newer one" if pinned else "pinned from now on"
    yield f"image: {facts.image.name} ({facts.image.id}), {how}"


def rank_reasons(fleet: Fleet, *, by_topology: bool) -> Iterator[str]:
    if fleet.topology == "rank-ordered" and by_topology:
        yield "ranks: neighbours in the InfiniBand network first, by the 3 levels that Nebius tells of"
    elif fleet.topology == "rank-ordered":
        yield "ranks: by node number; Nebius tells where machines of a GPU cluster stand, of others nothing"


def unpriced(price: float | None, bastion: Bastion | None, *, public: bool) -> Iterator[str]:
    """What costs money and has no price in the catalogue."""
    if price is None:
        yield "nodes"
    if bastion is not None and bastion.price is None:
        yield "bastion"
    if public or bastion is not None:
        yield "public IPv4 addresses"
    yield "root disks"
