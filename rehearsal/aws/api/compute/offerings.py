"""What the account can choose from: types, zones, images, and the network position of instances.

Sources: rehearsal/README.md.
"""

from __future__ import annotations

import hashlib
from typing import Any

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.aws.data.tables import Type, image_id, image_rows, regions, types
from orch.rehearsal.store import Doc

VERSIONS = ("20260801", "20261105")
"""Build dates of the two versions of each public image."""

FOUR_LEVELS = ("p6-b200", "p6-b300", "p6e-gb200")
"""Types whose topology has four levels of network nodes; other types with a topology have three."""

WITH_TOPOLOGY = ("p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6", "trn1.", "trn1n.", "trn2.", "g6e.")


# -- types and zones ---------------------------------------------------------------------------------------


def type_info(kind: Type) -> Doc:
    cards = [
        {
            "NetworkCardIndex": card.index,
            "MaximumNetworkInterfaces": card.interfaces,
            "NetworkPerformance": "Up to the type's bandwidth",
            "InterfaceTypes": [
                "interface",
                *(["efa"] if card.efa and card.efa_with_ena else []),
                *(["efa-only"] if card.efa else []),
            ],
        }
        for card in kind.cards
    ]
    usage = ["on-demand"]
    usage += ["spot"] if kind.spot else []
    usage += ["capacity-block"] if kind.capacity_block else []
    info: Doc = {
        "InstanceType": kind.name,
        "CurrentGeneration": True,
        "SupportedUsageClasses": usage,
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "BareMetal": False,
        "Hypervisor": "nitro",
        "ProcessorInfo": {"SupportedArchitectures": [kind.arch]},
        "VCpuInfo": {"DefaultVCpus": kind.vcpus},
        "MemoryInfo": {"SizeInMiB": kind.memory_mib},
        "InstanceStorageSupported": kind.disks[0] > 0,
        "NetworkInfo": {
            "MaximumNetworkInterfaces": kind.interfaces,
            "MaximumNetworkCards": len(kind.cards),
            "DefaultNetworkCardIndex": 0,
            "NetworkCards": cards,
            "Ipv4AddressesPerInterface": kind.addresses,
            "EnaSupport": "required",
            "EfaSupported": kind.efa > 0,
        },
        "PlacementGroupInfo": {
            "SupportedStrategies": [*(["cluster"] if kind.cluster else []), "partition", "spread"]
        },
        "BurstablePerformanceSupported": kind.name.startswith("t"),
    }
    if kind.efa:
        info["NetworkInfo"]["EfaInfo"] = {"MaximumEfaInterfaces": kind.efa}
    if kind.disks[0]:
        info["InstanceStorageInfo"] = {
            "TotalSizeInGB": kind.disks[0] * kind.disks[1],
            "Disks": [{"SizeInGB": kind.disks[1], "Count": kind.disks[0], "Type": "ssd"}],
            "NvmeSupport": "required",
        }
    accelerator = kind.accelerator
    if accelerator:
        device = {
            "Name": accelerator.name,
            "Count": accelerator.count,
            "MemoryInfo": {"SizeInMiB": accelerator.memory_mib},
        }
        total = accelerator.count * accelerator.memory_mib
        if accelerator.manufacturer == "NVIDIA":
            info["GpuInfo"] = {"Gpus": [{**device, "Manufacturer": "NVIDIA"}], "TotalGpuMemoryInMiB": total}
        else:
            info["NeuronInfo"] = {"NeuronDevices": [device], "TotalNeuronDeviceMemoryInMiB": total}
    return info


@action("DescribeInstanceTypes")
def describe_instance_types(request: Request) -> Doc:
    names = list(request.get("InstanceTypes") or ())
    unknown = [name for name in names if name not in types()]
    if unknown:
        raise AwsError(
            "InvalidInstanceType",
            f"The following supplied instance types do not exist: [{', '.join(unknown)}]",
        )
    fields = {
        "instance-type": path("InstanceType"),
        "network-info.efa-supported": path("NetworkInfo", "EfaSupported"),
        "vcpu-info.default-vcpus": path("VCpuInfo", "DefaultVCpus"),
        "supported-usage-class": lambda doc: doc["SupportedUsageClasses"],
    }
    matches = [type_info(types()[name]) for name in names or types()]
    return page(request, "InstanceTypes", select(request, "", fields, docs=matches), most=100)


@action("DescribeInstanceTypeOfferings")
def describe_instance_type_offerings(request: Request) -> Doc:
    from orch.rehearsal.aws.api.compute.capacity import offered_in

    by = request.get("LocationType", "region")
    rows: list[Doc] = []
    for name in types():
        zones = offered_in(request, name)
        ids = {zone.name: zone.id for zone in regions()[request.region]}
        places = {
            "region": [request.region] if zones else [],
            "availability-zone": zones,
            "availability-zone-id": [ids[zone] for zone in zones],
        }[by]
        rows += [{"InstanceType": name, "LocationType": by, "Location": place} for place in places]
    fields = {"instance-type": path("InstanceType"), "location": path("Location")}
    return page(request, "InstanceTypeOfferings", select(request, "", fields, docs=rows))


@action("DescribeAvailabilityZones")
def describe_availability_zones(request: Request) -> Doc:
    rows = [
        {
            "ZoneName": zone.name,
            "ZoneId": zone.id,
            "RegionName": zone.region,
            "State": "available",
            "OptInStatus": "opt-in-not-required",
            "ZoneType": "availability-zone",
            "GroupName": zone.region,
            "NetworkBorderGroup": zone.region,
            "Messages": [],
        }
        for zone in regions()[request.region]
    ]
    names, ids = request.get("ZoneNames"), request.get("ZoneIds")
    if names:
        unknown = [name for name in names if name not in {row["ZoneName"] for row in rows}]
        if unknown:
            raise AwsError("InvalidParameterValue", f"Invalid availability zone: [{unknown[0]}]")
        rows = [row for row in rows if row["ZoneName"] in names]
    if ids:
        rows = [row for row in rows if row["ZoneId"] in ids]
    fields = {
        "zone-name": path("ZoneName"),
        "zone-id": path("ZoneId"),
        "zone-type": path("ZoneType"),
        "state": path("State"),
        "region-name": path("RegionName"),
        "opt-in-status": path("OptInStatus"),
        "group-name": path("GroupName"),
    }
    return {"AvailabilityZones": select(request, "", fields, docs=rows)}


@action("DescribeRegions")
def describe_regions(request: Request) -> Doc:
    rows = [
        {"RegionName": name, "Endpoint": f"ec2.{name}.amazonaws.com", "OptInStatus": "opt-in-not-required"}
        for name in regions()
        if not request.get("RegionNames") or name in request["RegionNames"]
    ]
    return {"Regions": select(request, "", {"region-name": path("RegionName")}, docs=rows)}


# -- images ------------------------------------------------------------------------------------------------


def _image(region: str, row: Any, version: str) -> Doc:
    name = row["name"].replace("{date}", version)
    image = image_id(region, name)
    day = f"{version[:4]}-{version[4:6]}-{version[6:]}"
    return {
        "ImageId": image,
        "Name": name,
        "Description": name,
        "OwnerId": row["account"],
        **({"ImageOwnerAlias": row["owner"]} if row["owner"] else {}),
        "ImageLocation": f"{row['owner'] or row['account']}/{name}",
        "Architecture": row["arch"],
        "CreationDate": f"{day}T08:00:00.000Z",
        "State": "available",
        "Public": True,
        "ImageType": "machine",
        "Hypervisor": "xen",
        "VirtualizationType": "hvm",
        "RootDeviceType": "ebs",
        "RootDeviceName": row["device"],
        "EnaSupport": True,
        "PlatformDetails": "Linux/UNIX",
        "BlockDeviceMappings": [
            {
                "DeviceName": row["device"],
                "Ebs": {
                    "SnapshotId": "snap-0" + image[-16:],
                    "VolumeSize": row["root_gb"],
                    "VolumeType": "gp3",
                    "DeleteOnTermination": True,
                    "Encrypted": False,
                },
            }
        ],
    }


def images(region: str) -> list[Doc]:
    return [_image(region, row, version) for row in image_rows() for version in VERSIONS]


def image_named(request: Request, name: str) -> Doc:
    """An image by id, or by `resolve:ssm:PARAMETER`."""
    if name.startswith("resolve:ssm:"):
        name = parameter(request.region, name.removeprefix("resolve:ssm:")) or name
    for doc in images(request.region):
        if doc["ImageId"] == name:
            return doc
    digits = name.removeprefix("ami-")
    if not name.startswith("ami-") or len(digits) not in {8, 17}:
        raise AwsError("InvalidAMIID.Malformed", f'Invalid id: "{name}"')
    raise missing("image", name)


def parameter(region: str, name: str) -> str | None:
    """The value of an SSM public parameter that names an image."""
    for row in image_rows():
        if name in row["parameters"]:
            return image_id(region, row["name"].replace("{date}", VERSIONS[-1]))
    return None


@action("DescribeImages")
def describe_images(request: Request) -> Doc:
    fields = {
        "name": path("Name"),
        "image-id": path("ImageId"),
        "architecture": path("Architecture"),
        "state": path("State"),
        "owner-alias": path("ImageOwnerAlias"),
        "owner-id": path("OwnerId"),
        "virtualization-type": path("VirtualizationType"),
        "root-device-type": path("RootDeviceType"),
        "is-public": path("Public"),
        "image-type": path("ImageType"),
        "ena-support": path("EnaSupport"),
        "description": path("Description"),
    }
    matches = images(request.region)
    if request.get("ImageIds"):
        matches = [image_named(request, one) for one in request["ImageIds"]]
    owners = set(request.get("Owners") or ())
    if owners:
        matches = [doc for doc in matches if owners & {doc["OwnerId"], doc.get("ImageOwnerAlias")}]
    return page(request, "Images", select(request, "", fields, docs=matches))


# -- topology ----------------------------------------------------------------------------------------------


def nodes_of(request: Request, kind: Type, zone: str, group: str | None) -> list[str]:
    """The network nodes above an instance, outermost first.

    Instances of a placement group share the first two. Every fourth launch moves to another last node, so
    that launch order differs from network order.
    """
    if not kind.name.startswith(WITH_TOPOLOGY):
        return []
    place = group or zone
    number = request.store.count(f"topology {place}") - 1
    leaf = int(hashlib.sha256(f"{place} {number // 2}".encode()).hexdigest(), 16) % 4
    chain = [f"zone {zone}", f"group {place}", f"spine {place} {leaf // 2}", f"leaf {place} {leaf}"]
    if not kind.name.startswith(FOUR_LEVELS):
        chain = [chain[0], chain[1], chain[3]]
    return ["nn-0" + hashlib.sha256(f"{request.cloud.seed} {one}".encode()).hexdigest()[:16] for one in chain]


@action("DescribeInstanceTopology")
def describe_instance_topology(request: Request) -> Doc:
    from orch.rehearsal.aws.api.compute.instances import find

    ids: list[str] = list(request.get("InstanceIds") or ())
    groups: list[str] = list(request.get("GroupNames") or ())
    if len(ids) > 100 or len(groups) > 100:
        raise AwsError(
            "InvalidParameterValue", "At most 100 instance ids or placement groups may be specified"
        )
    if request.get("MaxResults") and ids:
        raise AwsError(
            "InvalidParameterCombination", "MaxResults cannot be specified together with instance ids"
        )
    plain = Request(request.cloud, {}, request.region)
    zones = {zone.name: zone.id for zone in regions()[request.region]}
    rows = []
    for doc in find(plain, ids or None):
        if doc["State"]["Name"] != "running" or not doc["_nodes"]:
            continue
        if groups and doc["Placement"].get("GroupName") not in groups:
            continue
        zone = doc["Placement"]["AvailabilityZone"]
        row: Doc = {
            "InstanceId": doc["InstanceId"],
            "InstanceType": doc["InstanceType"],
            "NetworkNodes": doc["_nodes"],
            "AvailabilityZone": zone,
            "ZoneId": zones[zone],
        }
        if doc["Placement"].get("GroupName"):
            row["GroupName"] = doc["Placement"]["GroupName"]
        if "_ends" in doc:
            row["CapacityBlockId"] = doc["CapacityReservationId"]
        rows.append(row)
    fields = {
        "availability-zone": path("AvailabilityZone"),
        "instance-type": path("InstanceType"),
        "zone-id": path("ZoneId"),
    }
    matches = select(request, "", fields, docs=rows)
    result = page(request, "Instances", matches, most=100)
    return {**result, "Instances": [public(row) for row in result["Instances"]]}
