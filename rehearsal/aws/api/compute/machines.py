"""Instances that a launch creates: their interfaces, disks and documents."""

from __future__ import annotations

from dataclasses import dataclass

from orch.rehearsal.aws.api.actions import Request, public, stamp, tag_list
from orch.rehearsal.aws.api.compute.capacity import ON_DEMAND, SPOT, occupy
from orch.rehearsal.aws.api.compute.launch_templates import tags_from
from orch.rehearsal.aws.api.compute.offerings import nodes_of
from orch.rehearsal.aws.api.compute.volumes import attached_as
from orch.rehearsal.aws.api.network.addresses import make_interface, private_name, public_address, public_name
from orch.rehearsal.aws.api.network.interfaces import InterfaceRequest
from orch.rehearsal.aws.data.tables import Type
from orch.rehearsal.store import Doc

PENDING = {"Code": 0, "Name": "pending"}


@dataclass(frozen=True)
class Launch:
    """A launch that passed all checks: everything is looked up, nothing is created yet."""

    kind: Type
    image: Doc
    market: str
    zone: str
    interfaces: tuple[InterfaceRequest, ...]
    subnets: dict[str, Doc]
    group: Doc | None
    reservation: Doc | None
    tags: list[Doc]
    volume_tags: list[Doc]
    count: int
    merged: Doc
    template: Doc | None
    profile: Doc | None


def make(request: Request, launch: Launch, reservation_id: str, number: int) -> Doc:
    kind, merged = launch.kind, launch.merged
    instance = request.cloud.new_id("i")
    now = request.cloud.now()
    vpc_id = launch.subnets[launch.interfaces[0].subnet or ""]["VpcId"]
    nics = [_interface(request, launch, one, instance, now) for one in launch.interfaces]
    primary = nics[0]
    doc: Doc = {
        "InstanceId": instance,
        "ImageId": launch.image["ImageId"],
        "InstanceType": kind.name,
        "State": PENDING,
        "AmiLaunchIndex": number,
        "Architecture": kind.arch,
        "Hypervisor": "nitro",
        "VirtualizationType": "hvm",
        "LaunchTime": stamp(now),
        "Monitoring": {"State": "enabled" if (merged.get("Monitoring") or {}).get("Enabled") else "disabled"},
        "Placement": {
            "AvailabilityZone": launch.zone,
            "Tenancy": "default",
            **(
                {"GroupName": launch.group["GroupName"], "GroupId": launch.group["GroupId"]}
                if launch.group
                else {}
            ),
        },
        "PrivateIpAddress": primary["PrivateIpAddress"],
        "PrivateDnsName": private_name(request, primary["PrivateIpAddress"]),
        "PublicDnsName": "",
        "SubnetId": primary["SubnetId"],
        "VpcId": vpc_id,
        "SecurityGroups": primary["Groups"],
        "NetworkInterfaces": nics,
        "SourceDestCheck": True,
        "EbsOptimized": bool(merged.get("EbsOptimized")),
        "EnaSupport": True,
        "RootDeviceName": launch.image["RootDeviceName"],
        "RootDeviceType": "ebs",
        "BlockDeviceMappings": _disks(request, launch, now),
        "ClientToken": merged.get("ClientToken") or "",
        "CpuOptions": {"CoreCount": max(1, kind.vcpus // 2), "ThreadsPerCore": 2 if kind.vcpus > 1 else 1},
        "MetadataOptions": {
            "State": "applied",
            "HttpTokens": "optional",
            "HttpPutResponseHopLimit": 1,
            "HttpEndpoint": "enabled",
            "InstanceMetadataTags": "disabled",
            **(merged.get("MetadataOptions") or {}),
        },
        "CapacityReservationSpecification": merged.get("CapacityReservationSpecification")
        or {"CapacityReservationPreference": "open"},
        "PlatformDetails": "Linux/UNIX",
        "StateTransitionReason": "",
        "Tags": tag_list({tag["Key"]: tag["Value"] for tag in launch.tags} | tags_from(launch.template)),
        "_ready": now + request.cloud.knobs_now().pending_s,
        "_market": launch.market,
        "_protected": bool(merged.get("DisableApiTermination")),
        "_shutdown": merged.get("InstanceInitiatedShutdownBehavior") or "stop",
        "_reservation": reservation_id,
        "_nodes": nodes_of(request, kind, launch.zone, launch.group["GroupId"] if launch.group else None),
    }
    if merged.get("KeyName"):
        doc["KeyName"] = merged["KeyName"]
    if launch.market != ON_DEMAND:
        doc["InstanceLifecycle"] = launch.market
    if launch.market == SPOT:
        doc["SpotInstanceRequestId"] = "sir-" + instance[-8:]
    if launch.profile:
        doc["IamInstanceProfile"] = {"Arn": launch.profile["Arn"], "Id": launch.profile["InstanceProfileId"]}
    if primary.get("Association"):
        doc["PublicIpAddress"] = primary["Association"]["PublicIp"]
        doc["PublicDnsName"] = primary["Association"]["PublicDnsName"]
        request.store.refer(instance, vpc_id, "public address")
    if launch.reservation:
        doc["CapacityReservationId"] = launch.reservation["CapacityReservationId"]
        request.store.refer(instance, launch.reservation["CapacityReservationId"], "reserved")
        if "_end" in launch.reservation:
            doc["_ends"] = launch.reservation["_end"]
    else:
        occupy(request, instance, kind, launch.zone, market=launch.market)
    if launch.group:
        request.store.refer(instance, launch.group["GroupId"], "placed")
    request.add(instance, "instance", doc)
    if merged.get("UserData"):
        request.add(f"user-data {instance}", "user-data", {"Value": merged["UserData"]})
    return doc


def _interface(request: Request, launch: Launch, one: InterfaceRequest, instance: str, now: float) -> Doc:
    subnet = launch.subnets[one.subnet or ""]
    attachment: Doc = {
        "AttachTime": stamp(now),
        "AttachmentId": request.cloud.new_id("eni-attach"),
        "DeleteOnTermination": one.delete,
        "DeviceIndex": one.device,
        "NetworkCardIndex": one.card,
        "Status": "attached",
    }
    interface = make_interface(
        request,
        subnet,
        one.groups,
        owner=instance,
        kind=one.kind,
        description=one.description,
        address=one.address,
        attachment={**attachment, "InstanceId": instance},
    )
    description = {**public(interface), "Attachment": attachment}
    if one.public and one.kind != "efa-only" and (one.card, one.device) == (0, 0):
        address = public_address(request)
        description["Association"] = {
            "IpOwnerId": "amazon",
            "PublicIp": address,
            "PublicDnsName": public_name(request, address),
        }
    description.pop("AvailabilityZone", None)
    return description


def _disks(request: Request, launch: Launch, now: float) -> list[Doc]:
    root = launch.image["RootDeviceName"]
    requested = {
        one["DeviceName"]: one for one in launch.merged.get("BlockDeviceMappings") or () if one.get("Ebs")
    }
    mappings = []
    for name in dict.fromkeys([root, *requested]):
        settings = (requested.get(name) or {}).get("Ebs") or {}
        volume = request.cloud.new_id("vol")
        size = settings.get("VolumeSize") or launch.image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
        request.add(
            volume,
            "volume",
            {
                "VolumeId": volume,
                "Size": size,
                "VolumeType": settings.get("VolumeType", "gp3"),
                "Iops": settings.get("Iops", 3000),
                "Throughput": settings.get("Throughput", 125),
                "Encrypted": bool(settings.get("Encrypted")),
                "KmsKeyId": settings.get("KmsKeyId"),
                "AvailabilityZone": launch.zone,
                "State": "in-use",
                "Tags": launch.volume_tags,
            },
        )
        delete = settings.get("DeleteOnTermination", True)
        mappings.append(attached_as(name, volume, stamp(now), delete=delete))
    return mappings
