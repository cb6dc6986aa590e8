"""What the properties of AWS's resources say of a fleet, and what a plan's nodes are in few words. Pure."""

from __future__ import annotations

from orch.catalog.aws.machines import nics
from orch.components.aws.plan import AwsPlan
from orch.components.cloud.cloudinit import scratch
from orch.components.explain import Explained, Row, counted, scratch_words
from orch.spec.models import Fleet

_ANY = ".*"
_NODE = "aws:ec2/instance:Instance"
_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
_DISK = r"blockDeviceMappings\[0\]\.ebs"
_NIC = r"networkInterfaces\[\d+\]"
_KINDS = {"interface": "ENA", "efa": "EFA with ENA", "efa-only": "EFA"}
_ADDRESSES = {"none": "none", "launch": "from the launch", "elastic": "Elastic IPs"}

EXPLAINED = Explained(
    traits={
        "region": "region",
        "zone": "zone",
        "instance_type": "type",
        "market": "capacity",
        "image": "machine image",
        "disk": "root disk",
        "disk_key": "key of the root disk",
        "interfaces": "network interfaces",
        "addresses": "public addresses",
        "scratch": "scratch",
        "placement": "placement",
        "tags": "tags",
    },
    # Those of the mark `orch:layout`, and the placement, which decides on the interfaces.
    new_nodes=frozenset(
        {"zone", "instance_type", "market", "image", "disk", "interfaces", "addresses"}
        | {"disk_key", "scratch", "placement"}
    ),
    rows=(
        Row(_TEMPLATE, rf"{_DISK}\.volumeSize", "disk", " GB"),
        Row(_TEMPLATE, rf"{_DISK}\.kmsKeyId", "disk_key"),
        Row(_TEMPLATE, r"networkInterfaces(\[\d+\])?", "interfaces"),
        Row(_TEMPLATE, rf"{_NIC}\.(networkCardIndex|deviceIndex|interfaceType)", "interfaces"),
        Row(_TEMPLATE, rf"{_NIC}\.associatePublicIpAddress", "addresses"),
        Row(_TEMPLATE, r"instanceMarketOptions(\..*)?", "market"),
        Row(_TEMPLATE, r"capacityReservationSpecification(\..*)?", None),
        Row(_TEMPLATE, r"placement(\..*)?", "placement"),
        Row(_TEMPLATE, r"userData|metadataOptions(\..*)?", None),
        Row(_TEMPLATE, r"tagSpecifications(\[\d+\].*)?", "tags"),
        Row(_NODE, r"launchTemplate(\..*)?", None),
        Row(_NODE, r'tags\.orch:layout|tags\["orch:layout"\]', None),
        Row(_NODE, r"userDataBase64", None),
        Row(_NODE, r"ami", "image"),
        Row(_NODE, r"instanceType", "instance_type"),
        Row("aws:ec2/capacityReservation:CapacityReservation", r"instanceCount", "nodes"),
        Row("aws:ec2/capacityReservation:CapacityReservation", r"instanceType", "instance_type"),
        Row(_ANY, r"availabilityZone(Id)?", "zone"),
        Row(_ANY, r"region", "region"),
        Row(_ANY, r'tags(All)?(\..*|\[".*"\])?', "tags"),
    ),
)


def traits(fleet: Fleet, plan: AwsPlan) -> dict[str, str]:
    """What the nodes of a plan are."""
    made = scratch(fleet, nics()[plan.instance_type].disks)
    tags = {key: value for key, value in plan.tags.items() if not key.startswith("orch:")}
    return {
        "region": plan.region,
        "zone": plan.zone,
        "instance_type": plan.instance_type,
        "market": plan.capacity.market,
        "image": plan.image,
        "disk": f"{plan.disk.size_gb} GB",
        "disk_key": plan.disk.kms_key or "AWS's own",
        "interfaces": counted([_KINDS[each.kind] for each in plan.interfaces]),
        "addresses": _ADDRESSES[plan.addresses.kind],
        "scratch": scratch_words(made),
        "placement": plan.placement,
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "none",
    }
