"""Instances that a launch creates: their fields and interfaces. Sources: rehearsal/README.md, "Launch"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orch.rehearsal.aws.api.actions import Request, stamp, tag_list
from orch.rehearsal.aws.api.compute.capacity import ON_DEMAND, SPOT, occupy
from orch.rehearsal.aws.api.compute.launch_templates import tags_from
from orch.rehearsal.aws.api.compute.offerings import nodes_of
from orch.rehearsal.aws.api.compute.volumes import launch_volumes
from orch.rehearsal.aws.api.network.addresses import attach_interface, private_name
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


def create_instance(request: Request, launch: Launch, reservation_id: str, number: int) -> Doc:
    instance, now = request.cloud.new_id("i"), request.cloud.now()
    vpc_id = launch.subnets[launch.interfaces[0].subnet or ""]["VpcId"]
    nics = [
        attach_interface(request, launch.subnets[one.subnet or ""], one, instance, now)
        for one in launch.interfaces
    ]
    doc = {
        "InstanceId": instance,
        "AmiLaunchIndex": number,
        **_machine(request, launch, now),
        **_network(request, vpc_id, nics),
        "_reservation": reservation_id,
    }
    if launch.market == SPOT:
        doc["SpotInstanceRequestId"] = "sir-" + instance[-8:]
    if nics[0].get("Association"):
        request.store.refer(instance, vpc_id, "public address")
    if launch.reservation:
        doc["CapacityReservationId"] = launch.reservation["CapacityReservationId"]
        request.store.refer(instance, launch.reservation["CapacityReservationId"], "reserved")
        if "_end" in launch.reservation:
            doc["_ends"] = launch.reservation["_end"]
    else:
        occupy(request, instance, launch.kind, launch.zone, market=launch.market)
    if launch.group:
        request.store.refer(instance, launch.group["GroupId"], "placed")
    request.add(instance, "instance", doc)
    if launch.merged.get("UserData"):
        request.add(f"user-data {instance}", "user-data", {"Value": launch.merged["UserData"]})
    return doc


def _network(request: Request, vpc_id: str, nics: Sequence[Doc]) -> Doc:
    """Return the fields of an instance that follow from its interfaces."""
    primary = nics[0]
    public_address = primary.get("Association")
    return {
        "PrivateIpAddress": primary["PrivateIpAddress"],
        "PrivateDnsName": private_name(request, primary["PrivateIpAddress"]),
        "PublicDnsName": public_address["PublicDnsName"] if public_address else "",
        **({"PublicIpAddress": public_address["PublicIp"]} if public_address else {}),
        "SubnetId": primary["SubnetId"],
        "VpcId": vpc_id,
        "SecurityGroups": primary["Groups"],
        "NetworkInterfaces": [*nics],
    }


def _machine(request: Request, launch: Launch, now: float) -> Doc:
    """Return the fields of an instance that follow from what is launched."""
    kind, merged, group, profile = launch.kind, launch.merged, launch.group, launch.profile
    placed = {"GroupName": group["GroupName"], "GroupId": group["GroupId"]} if group else {}
    return {
        "ImageId": launch.image["ImageId"],
        "InstanceType": kind.name,
        "State": PENDING,
        "Architecture": kind.arch,
        "Hypervisor": "nitro",
        "VirtualizationType": "hvm",
        "LaunchTime": stamp(now),
        "Monitoring": {"State": "enabled" if (merged.get("Monitoring") or {}).get("Enabled") else "disabled"},
        "Placement": {"AvailabilityZone": launch.zone, "Tenancy": "default", **placed},
        "SourceDestCheck": True,
        "EbsOptimized": bool(merged.get("EbsOptimized")),
        "EnaSupport": True,
        "RootDeviceName": launch.image["RootDeviceName"],
        "RootDeviceType": "ebs",
        "BlockDeviceMappings": launch_volumes(
            request,
            merged.get("BlockDeviceMappings") or (),
            launch.image,
            zone=launch.zone,
            tags=launch.volume_tags,
            now=now,
        ),
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
        **({"KeyName": merged["KeyName"]} if merged.get("KeyName") else {}),
        **({"InstanceLifecycle": launch.market} if launch.market != ON_DEMAND else {}),
        **(
            {"IamInstanceProfile": {"Arn": profile["Arn"], "Id": profile["InstanceProfileId"]}}
            if profile
            else {}
        ),
        "_ready": now + request.cloud.knobs_now().pending_s,
        "_market": launch.market,
        "_protected": bool(merged.get("DisableApiTermination")),
        "_shutdown": merged.get("InstanceInitiatedShutdownBehavior") or "stop",
        "_nodes": nodes_of(request, kind, launch.zone, group["GroupId"] if group else None),
    }
