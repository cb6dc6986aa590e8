"""What the properties of GCP's resources say of a fleet, and what a plan's nodes are in few words. Pure."""

from __future__ import annotations

from orch.components.explain import Explained, Row, counted, scratch_words
from orch.components.gcp.plan import GcpPlan
from orch.spec.grammar.values import render_duration
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


def traits(plan: GcpPlan, scratch: Scratch | None) -> dict[str, str]:
    """What the nodes of a plan are. `scratch` is what becomes of the local SSDs."""
    taken, vpcs = plan.scheduling, list(dict.fromkeys(each.vpc for each in plan.interfaces))
    lasting = f" for {render_duration(taken.run_s)}" if taken.run_s is not None else ""
    own = {key: value for key, value in plan.labels.items() if not key.startswith("orch-")}
    return {
        "project": plan.project,
        "region": plan.region,
        "zone": plan.zone,
        "instance_type": plan.instance_type,
        "market": f"{_MODELS[taken.model]}{lasting}",
        "reservation": plan.reservation or "none",
        "image": plan.image.rpartition("/")[2],
        "disk": f"{plan.disk.size_gb} GB {plan.disk.type}",
        "network": vpcs[0] + (f" and {len(vpcs) - 1} more" if len(vpcs) > 1 else ""),
        "interfaces": counted([each.kind for each in plan.interfaces]),
        "addresses": "one each" if plan.public else "none",
        "scratch": scratch_words(scratch),
        "placement": plan.placement,
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(own.items())) or "none",
    }
