"""What the properties of AWS's resources say of a fleet, what a plan's nodes are in few words, and why.

Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.catalog.aws.machines import Nics, nics
from orch.components.aws import network as networks
from orch.components.aws.account.facts import AwsFacts
from orch.components.aws.candidates import CloudCandidate
from orch.components.aws.plan import AwsPlan
from orch.components.cloud.machines.cloudinit import scratch
from orch.components.cloud.plan import Bastion
from orch.components.explain import ChangeRow, Explained, counted, scratch_words
from orch.spec.models import Fleet

_ANY = ".*"
_NODE = "aws:ec2/instance:Instance"
_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
_DISK = r"blockDeviceMappings\[0\]\.ebs"
_NIC = r"networkInterfaces\[\d+\]"
_KINDS = {"interface": "ENA", "efa": "EFA with ENA", "efa-only": "EFA"}
_ADDRESSES = {"none": "none", "launch": "from the launch", "elastic": "Elastic IPs"}

EXPLAINED = Explained(
    template=_TEMPLATE,
    holds_data=frozenset({"aws:efs/fileSystem:FileSystem", "aws:fsx/lustreFileSystem:LustreFileSystem"}),
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
        ChangeRow(_TEMPLATE, rf"{_DISK}\.volumeSize", "disk", " GB"),
        ChangeRow(_TEMPLATE, rf"{_DISK}\.kmsKeyId", "disk_key"),
        ChangeRow(_TEMPLATE, r"networkInterfaces(\[\d+\])?", "interfaces"),
        ChangeRow(_TEMPLATE, rf"{_NIC}\.(networkCardIndex|deviceIndex|interfaceType)", "interfaces"),
        ChangeRow(_TEMPLATE, rf"{_NIC}\.associatePublicIpAddress", "addresses"),
        ChangeRow(_TEMPLATE, r"instanceMarketOptions(\..*)?", "market"),
        ChangeRow(_TEMPLATE, r"capacityReservationSpecification(\..*)?", None),
        ChangeRow(_TEMPLATE, r"placement(\..*)?", "placement"),
        ChangeRow(_TEMPLATE, r"userData|metadataOptions(\..*)?", None),
        ChangeRow(_TEMPLATE, r"tagSpecifications(\[\d+\].*)?", "tags"),
        ChangeRow(_NODE, r"launchTemplate(\..*)?", None),
        ChangeRow(_NODE, r'tags\.orch:layout|tags\["orch:layout"\]', None),
        ChangeRow(_NODE, r"userDataBase64", None),
        ChangeRow(_NODE, r"ami", "image"),
        ChangeRow(_NODE, r"instanceType", "instance_type"),
        ChangeRow("aws:ec2/capacityReservation:CapacityReservation", r"instanceCount", "nodes"),
        ChangeRow("aws:ec2/capacityReservation:CapacityReservation", r"instanceType", "instance_type"),
        ChangeRow(_ANY, r"availabilityZone(Id)?", "zone"),
        ChangeRow(_ANY, r"region", "region"),
        ChangeRow(_ANY, r'tags(All)?(\..*|\[".*"\])?', "tags"),
    ),
)


def traits(fleet: Fleet, plan: AwsPlan) -> dict[str, str]:
    """What the nodes of a plan are."""
    volume = scratch(fleet, nics()[plan.instance_type].disks)
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
        "scratch": scratch_words(volume),
        "placement": plan.placement,
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "none",
    }


def words(candidate: CloudCandidate, *, block: bool) -> str:
    machine = f"{candidate.type.name} in {candidate.region}, zone {candidate.zone}"
    return f"{machine}, paid for with the Capacity Block" if block else candidate.words


def capacity_reasons(reserved_nodes: int | None, facts: AwsFacts, candidate: CloudCandidate) -> Iterator[str]:
    reservation = facts.reservation
    if reserved_nodes is not None:
        yield (
            f"capacity: a reservation of its own for all {reserved_nodes} nodes is made first; "
            "EC2 grants it whole or refuses it at once"
        )
    elif reservation is not None:
        what = "Capacity Block" if reservation.kind == "block" else "Capacity Reservation"
        ends = f", which ends at {reservation.end}" if reservation.end else ""
        yield f"capacity: from the {what} {reservation.id} of {reservation.total}{ends}; orch buys none"
    elif candidate.spot:
        yield "capacity: spot, which AWS may take back with two minutes' notice"


def scratch_reasons(fleet: Fleet, each: Nics) -> Iterator[str]:
    volume = scratch(fleet, each.disks)
    if volume is not None and each.disks:
        if not each.counted:
            yield f"scratch: local NVMe of {each.disk_gb} GB in all, {volume.fs} at {volume.path}"
            return
        disks = (
            f"{each.disks} local NVMe disks of {each.disk_gb} GB"
            if each.disks > 1
            else (f"the local NVMe disk of {each.disk_gb} GB")
        )
        joined = f" joined as RAID 0 ({each.disks * each.disk_gb} GB)" if each.disks > 1 else ""
        yield f"scratch: {disks}{joined}, {volume.fs} at {volume.path}"


def own_costs(decision: networks.NetworkDecision, bastion: Bastion | None) -> Iterator[str]:
    """Yield what costs money beside nodes and bastion, and has no price in the catalogue."""
    nat = not isinstance(decision.network, networks.ExistingNetwork) and not decision.network.public
    if nat:
        yield "NAT gateway and its traffic"
    if nat or decision.addresses.kind != "none" or (bastion is not None and bastion.public):
        yield "public IPv4 addresses"
    yield "root disks"
