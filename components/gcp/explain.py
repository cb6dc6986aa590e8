"""What the properties of GCP's resources say of a fleet, and what a plan's nodes are in few words. Pure."""

from __future__ import annotations

from orch.components.explain import Explained, Row, counted
from orch.components.gcp.planned import GcpPlan

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
    traits={
        "project": "project",
        "region": "region",
        "zone": "zone",
        "instance_type": "type",
        "market": "capacity",
        "reservation": "reservation",
        "image": "machine image",
        "disk": "root disk",
        "interfaces": "network interfaces",
        "addresses": "public addresses",
        "scratch": "scratch",
        "placement": "placement",
        "tags": "labels",
    },
    # Those of the mark `orch-layout`, and the placement, which decides on the interfaces.
    new_nodes=frozenset(
        {"zone", "instance_type", "market", "image", "disk", "interfaces", "addresses"}
        | {"reservation", "scratch", "placement"}
    ),
    rows=(
        Row(_TEMPLATE, r"disks\[0\]\.diskSizeGb", "disk", " GB"),
        Row(_TEMPLATE, r"disks\[0\]\.diskType", "disk"),
        Row(_TEMPLATE, r"disks\[0\]\.sourceImage", "image"),
        Row(_TEMPLATE, r"disks\[0\]\.labels(\..*|\[.*\])?", "tags"),
        Row(_TEMPLATE, r"networkInterfaces(\[\d+\])?", "interfaces"),
        Row(_TEMPLATE, r"networkInterfaces\[\d+\]\.(nicType|stackType)", "interfaces"),
        Row(_TEMPLATE, r"networkInterfaces\[\d+\]\.accessConfigs.*", "addresses"),
        Row(_TEMPLATE, r"scheduling(\..*)?", "market"),
        Row(_TEMPLATE, r"reservationAffinity(\..*)?", "reservation"),
        Row(_TEMPLATE, r"guestAccelerators.*|machineType", "instance_type"),
        Row(_TEMPLATE, r"resourcePolicies", "placement"),
        # A template's name changes with its content.
        Row(_TEMPLATE, r"name|description", None),
        Row(_TEMPLATE, r"metadata(\..*|\[.*\])?", None),
        Row(_NODE, r"sourceInstanceTemplate", None),
        Row(_NODE, rf"labels{_LABEL.format('orch-layout')}", None),
        Row(_NODE, rf"metadata({_LABEL.format('user-data')})?", None),
        Row(_ANY, r"zone", "zone"),
        Row(_ANY, r"region", "region"),
        Row(_ANY, r"project", "project"),
        Row(_ANY, r"(effectiveL|pulumiL|l)abels(\..*|\[.*\])?", "tags"),
    ),
)


def traits(plan: GcpPlan, scratch: str | None) -> dict[str, str]:
    """What the nodes of a plan are. `scratch` is where the local SSDs are."""
    own = {key: value for key, value in plan.labels.items() if not key.startswith("orch-")}
    return {
        "project": plan.project,
        "region": plan.region,
        "zone": plan.zone,
        "instance_type": plan.instance_type,
        "market": _MODELS[plan.scheduling.model],
        "reservation": plan.reservation or "none",
        "image": plan.image.rpartition("/")[2],
        "disk": f"{plan.disk.size_gb} GB {plan.disk.type}",
        "interfaces": counted([each.kind for each in plan.interfaces]),
        "addresses": "one each" if plan.public else "none",
        "scratch": scratch or "none",
        "placement": plan.placement,
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(own.items())) or "none",
    }
