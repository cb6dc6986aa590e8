"""What the properties of Nebius's resources say of a fleet, what a plan's nodes are in few words, and why.

Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.components.cloud.machines.ssh_access import AccessMethod, ssh_reasons
from orch.components.cloud.plan import Bastion
from orch.components.cloud.reasons import room_words
from orch.components.explain import ChangeRow, Explained
from orch.components.nebius.account.facts import NebiusFacts
from orch.components.nebius.candidates import NebiusCandidate
from orch.components.nebius.plan import NebiusPlan, Network
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
    else:
        room = facts.stock
        why = "Nebius does not tell its stock" if room is None else room_words(room, nodes, "fabric")
    yield f"InfiniBand: one GPU cluster on the fabric {candidate.infiniband}, {why}"


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
