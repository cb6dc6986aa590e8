"""What the properties of GCP's resources say of a fleet, what a plan's nodes are in few words, and why.

Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.catalog.gcp.machines import Shape, software
from orch.components.explain import ChangeRow, Explained, counted, scratch_words
from orch.components.gcp.account.facts import GcpFacts
from orch.components.gcp.candidates import CloudCandidate
from orch.components.gcp.plan import GcpPlan, ManagedGroup, Scheduling
from orch.spec.grammar.values import render_duration
from orch.spec.models import Fleet
from orch.spec.models.blocks import Scratch

_ANY = ".*"
_NODE = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
_TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
_LABEL = r'(?:\.{0}|\["{0}"\])'
_MODELS = {
    "STANDARD": "on-demand",
    "SPOT": "spot",
    "FLEX_START": "flex-start",
    "RESERVATION_BOUND": "bound to a reservation",
}

EXPLAINED = Explained(
    template=_TEMPLATE,
    holds_data=frozenset({"gcp:filestore/instance:Instance"}),
    traits={
        "project": "project",
        "region": "region",
        "zone": "zone",
        "instance_type": "type",
        "market": "capacity",
        "reservation": "reservation",
        "image": "machine image",
        "disk": "root disk",
        "network": "network",
        "interfaces": "network interfaces",
        "addresses": "public addresses",
        "scratch": "scratch",
        "placement": "placement",
        "tags": "labels",
    },
    # Those of the mark `orch-layout`, and the placement, which decides on the interfaces.
    new_nodes=frozenset(
        {"zone", "instance_type", "market", "image", "disk", "interfaces", "addresses"}
        | {"reservation", "network", "scratch", "placement"}
    ),
    rows=(
        ChangeRow(_TEMPLATE, r"disks\[0\]\.diskSizeGb", "disk", " GB"),
        ChangeRow(_TEMPLATE, r"disks\[0\]\.diskType", "disk"),
        ChangeRow(_TEMPLATE, r"disks\[0\]\.sourceImage", "image"),
        ChangeRow(_TEMPLATE, r"disks\[0\]\.labels(\..*|\[.*\])?", "tags"),
        ChangeRow(_TEMPLATE, r"networkInterfaces(\[\d+\])?", "interfaces"),
        ChangeRow(_TEMPLATE, r"networkInterfaces\[\d+\]\.(nicType|stackType)", "interfaces"),
        ChangeRow(_TEMPLATE, r"networkInterfaces\[\d+\]\.accessConfigs.*", "addresses"),
        ChangeRow(_TEMPLATE, r"scheduling(\..*)?", "market"),
        ChangeRow(_TEMPLATE, r"reservationAffinity(\..*)?", "reservation"),
        ChangeRow(_TEMPLATE, r"guestAccelerators.*|machineType", "instance_type"),
        ChangeRow(_TEMPLATE, r"resourcePolicies", "placement"),
        # A template's name changes with its content.
        ChangeRow(_TEMPLATE, r"name|description", None),
        ChangeRow(_TEMPLATE, r"metadata(\..*|\[.*\])?", None),
        ChangeRow(_NODE, r"sourceInstanceTemplate", None),
        ChangeRow(_NODE, rf"labels{_LABEL.format('orch-layout')}", None),
        ChangeRow(_NODE, rf"metadata({_LABEL.format('user-data')})?", None),
        ChangeRow(_ANY, r"zone", "zone"),
        ChangeRow(_ANY, r"region", "region"),
        ChangeRow(_ANY, r"project", "project"),
        ChangeRow(_ANY, r"(effectiveL|pulumiL|l)abels(\..*|\[.*\])?", "tags"),
    ),
)


def traits(plan: GcpPlan, scratch: Scratch | None) -> dict[str, str]:
    """What the nodes of a plan are. `scratch` is what becomes of the local SSDs."""
    scheduling, vpcs = plan.scheduling, list(dict.fromkeys(each.vpc for each in plan.interfaces))
    duration = f" for {render_duration(scheduling.run_s)}" if scheduling.run_s is not None else ""
    tags = {key: value for key, value in plan.labels.items() if not key.startswith("orch-")}
    return {
        "project": plan.project,
        "region": plan.region,
        "zone": plan.zone,
        "instance_type": plan.instance_type,
        "market": f"{_MODELS[scheduling.model]}{duration}",
        "reservation": plan.reservation or "none",
        "image": plan.image.rpartition("/")[2],
        "disk": f"{plan.disk.size_gb} GB {plan.disk.type}",
        "network": vpcs[0] + (f" and {len(vpcs) - 1} more" if len(vpcs) > 1 else ""),
        "interfaces": counted([each.kind for each in plan.interfaces]),
        "addresses": "one each" if plan.public else "none",
        "scratch": scratch_words(scratch),
        "placement": plan.placement,
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "none",
    }


def words(candidate: CloudCandidate, scheduling: Scheduling) -> str:
    """What is made and for how much. Flex start has prices of its own below those on demand."""
    return (
        candidate.words.replace(", on demand, ", ", flex start, at most ", 1)
        if scheduling.run_s
        else candidate.words
    )


def capacity_reasons(
    fleet: Fleet, group: ManagedGroup | None, scheduling: Scheduling, facts: GcpFacts
) -> Iterator[str]:
    reservation = facts.reservation
    if group is not None:
        yield (
            f"capacity: a managed instance group, one resize request for all {group.batches[-1]} new nodes: "
            f"GCP gives them all at once, by flex start, for {render_duration(group.run_s)}"
        )
    elif reservation is not None:
        bound = "; its nodes end with it" if scheduling.model == "RESERVATION_BOUND" else ""
        name, total = reservation.name, reservation.total
        yield f"capacity: from the reservation {name} of {total}; orch buys none{bound}"
    elif scheduling.model == "SPOT":
        yield "capacity: spot, which GCP may take back with 30 seconds' notice; its node is deleted"
    elif fleet.gang == "all-or-nothing":
        yield "capacity: on demand, node by node; where one is refused all go, and the next zone is tried"
    if scheduling.restart and scheduling.on_maintenance == "TERMINATE":
        yield "maintenance: stops a node and starts it again, as GPUs cannot move"


def account_reasons(account: str | None) -> Iterator[str]:
    if account is None:
        yield "service account: none, so nodes can call no API of Google; `vm_service_account` names one"
    else:
        yield f"service account: {account}, for root of a node, not for jobs"


def software_reasons(shape: Shape) -> Iterator[str]:
    parts = software(shape.fabric, shape.type)
    if parts:
        listed = ", ".join(
            f"{part} {each.reference.rpartition('/')[2]}" for part, each in sorted(parts.items())
        )
        yield f"nodes start with: {listed}"


def scratch_reasons(volume: Scratch | None, shape: Shape) -> Iterator[str]:
    if volume is not None and shape.disks:
        many = shape.disks > 1
        disks = (
            f"{shape.disks} local SSDs of {shape.disk_gb} GB"
            if many
            else f"the local SSD of {shape.disk_gb} GB"
        )
        joined = f" joined as RAID 0 ({shape.disks * shape.disk_gb} GB)" if many else ""
        yield f"scratch: {disks}{joined}, {volume.fs} at {volume.path}"
