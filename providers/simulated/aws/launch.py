"""RunInstances: what a launch asks for, whether it may, and the instances. Sources: ../README.md,
"Launch"."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orch.providers.simulated.aws.addresses import (
    check_interface_quota,
    make_interface,
    private_name,
    public_address,
    public_name,
)
from orch.providers.simulated.aws.data import Type
from orch.providers.simulated.aws.errors import AwsError
from orch.providers.simulated.aws.groups import group_named
from orch.providers.simulated.aws.interfaces import Interface, interfaces
from orch.providers.simulated.aws.network import account_of, default_vpc, free_addresses, no_free
from orch.providers.simulated.aws.offerings import image_named, nodes_of
from orch.providers.simulated.aws.registry import Request, action, public, stamp, tag_list
from orch.providers.simulated.aws.reservations import (
    ON_DEMAND,
    SPOT,
    capacity_left,
    check_offered,
    check_placement,
    find_reservation,
    insufficient,
    known_type,
    occupy,
    placement_group,
    reservation_now,
    too_many_vcpus,
    vcpus_left,
)
from orch.providers.simulated.aws.templates import key_named, template_of, version_of
from orch.providers.simulated.store import Doc

USER_DATA_LIMIT = 16384

PENDING = {"Code": 0, "Name": "pending"}


@dataclass(frozen=True)
class Launch:
    """A launch that may be: everything looked up, nothing made yet."""

    kind: Type
    image: Doc
    market: str
    zone: str
    interfaces: tuple[Interface, ...]
    subnets: dict[str, Doc]
    group: Doc | None
    reservation: Doc | None
    tags: list[Doc]
    volume_tags: list[Doc]
    count: int
    merged: Doc
    template: Doc | None
    profile: Doc | None


@action("RunInstances")
def run_instances(request: Request) -> Doc:
    token = request.get("ClientToken")
    digest = hashlib.sha256(json.dumps(request.params, sort_keys=True, default=str).encode()).hexdigest()
    if token:
        before = request.store.token(token)
        if before is not None:
            return _again(request, before, digest)
    launch = _checked(request)
    reservation_id = request.cloud.new_id("r")
    made = [_make(request, launch, reservation_id, number) for number in range(launch.count)]
    if token:
        ids = [doc["InstanceId"] for doc in made]
        request.store.put_token(token, {"digest": digest, "reservation": reservation_id, "instances": ids})
    return _answer(request, reservation_id, made)


def _answer(request: Request, reservation_id: str, made: Sequence[Doc]) -> Doc:
    return {
        "ReservationId": reservation_id,
        "OwnerId": account_of(request),
        "Groups": [],
        "Instances": [public(doc) for doc in made],
    }


def _again(request: Request, before: Doc, digest: str) -> Doc:
    """The same client token once more: the same answer, no second launch."""
    if before["digest"] != digest:
        raise AwsError(
            "IdempotentParameterMismatch",
            "Arguments on this idempotent request are inconsistent with arguments used in previous "
            "request(s).",
        )
    made = [request.thing("instance", one) for one in before["instances"]]
    if any(doc.get("_terminated") for doc in made):
        raise AwsError(
            "IdempotentInstanceTerminated", "The instance of this idempotent request is terminated."
        )
    return _answer(request, before["reservation"], made)


# -- what is asked for -------------------------------------------------------------------------------------


def _merge(request: Request) -> tuple[Doc, Doc | None]:
    """The request over its launch template, and the template's version."""
    spec = request.get("LaunchTemplate")
    if not spec:
        return dict(request.params), None
    template = template_of(request, spec.get("LaunchTemplateId"), spec.get("LaunchTemplateName"))
    version = version_of(request, template, spec.get("Version"))
    data = dict(version["LaunchTemplateData"])
    if request.get("NetworkInterfaces"):
        data.pop("SecurityGroupIds", None)
    merged = {**data, **{key: value for key, value in request.params.items() if value not in (None, [], {})}}
    if data.get("Placement") and request.get("Placement"):
        merged["Placement"] = {**data["Placement"], **request["Placement"]}
    tags = [*(data.get("TagSpecifications") or ()), *(request.get("TagSpecifications") or ())]
    merged["TagSpecifications"] = tags
    return merged, version


def _checked(request: Request) -> Launch:
    merged, version = _merge(request)
    asked = Request(request.cloud, merged, request.region)
    least, most = int(asked.get("MinCount", 1)), int(asked.get("MaxCount", 1))
    if least < 1 or most < least:
        raise AwsError("InvalidParameterValue", f"Value ({most}) for parameter maxCount is invalid.")
    kind = known_type(asked["InstanceType"])
    image = image_named(asked, asked["ImageId"])
    if image["Architecture"] != kind.arch:
        raise AwsError(
            "InvalidParameterValue",
            f"The architecture '{kind.arch}' of the specified instance type does not match the architecture "
            f"'{image['Architecture']}' of the specified AMI.",
        )
    _check_user_data(asked.get("UserData"))
    _check_disks(asked.get("BlockDeviceMappings") or (), image)
    if asked.get("KeyName"):
        key_named(asked, asked["KeyName"])
    profile = _profile(asked)
    nics, subnets, zone = _network(asked, kind)
    check_offered(asked, kind.name, zone)
    placement = asked.get("Placement") or {}
    group: Doc | None = None
    if placement.get("GroupName") or placement.get("GroupId"):
        group = placement_group(asked, name=placement.get("GroupName"), group_id=placement.get("GroupId"))
        check_placement(asked, group, kind, zone)
    market = ((asked.get("InstanceMarketOptions") or {}).get("MarketType")) or ON_DEMAND
    reservation = _reservation(asked, kind, zone, market=market, group=group, count=least)
    count = _how_many(
        asked,
        kind,
        zone,
        market=market,
        reservation=reservation,
        least=least,
        most=most,
        nics=nics,
        subnets=subnets,
    )
    tags: dict[str, dict[str, str]] = {"instance": {}, "volume": {}}
    for specification in asked.get("TagSpecifications") or ():
        tags.setdefault(specification["ResourceType"], {}).update(
            {tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags") or ()}
        )
    return Launch(
        kind=kind,
        image=image,
        market=market,
        zone=zone,
        interfaces=nics,
        subnets=subnets,
        group=group,
        reservation=reservation,
        tags=tag_list(tags["instance"]),
        volume_tags=tag_list(tags["volume"]),
        count=count,
        merged=merged,
        template=version,
        profile=profile,
    )


def _check_user_data(text: Any) -> None:
    if not text:
        return
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raise AwsError("InvalidParameterValue", "Invalid BASE64 encoding of user data.") from None
    if len(raw) > USER_DATA_LIMIT:
        raise AwsError("InvalidParameterValue", "User data is limited to 16384 bytes")


def _check_disks(mappings: Sequence[Doc], image: Doc) -> None:
    smallest = image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
    for one in mappings:
        size = (one.get("Ebs") or {}).get("VolumeSize")
        if one.get("DeviceName") == image["RootDeviceName"] and size is not None and size < smallest:
            raise AwsError(
                "InvalidBlockDeviceMapping",
                f"Volume of size {size}GB is smaller than snapshot "
                f"'{image['BlockDeviceMappings'][0]['Ebs']['SnapshotId']}', expect size >= {smallest}GB",
            )


def _profile(request: Request) -> Doc | None:
    spec = request.get("IamInstanceProfile")
    if not spec:
        return None
    name = spec.get("Name") or str(spec.get("Arn", "")).rpartition("/")[2]
    found = request.store.get(f"instance-profile/{name}", "instance-profile")
    if found is None:
        which = "Name" if spec.get("Name") else "Arn"
        raise AwsError(
            "InvalidParameterValue",
            f"Value ({spec.get(which)}) for parameter iamInstanceProfile.{which.lower()} is invalid. "
            f"Invalid IAM "
            f"Instance Profile {which}",
        )
    if not found["Roles"]:
        raise AwsError(
            "InvalidParameterValue", f'IAM Instance Profile "{found["Arn"]}" has no associated IAM Roles'
        )
    return found


def _network(request: Request, kind: Type) -> tuple[tuple[Interface, ...], dict[str, Doc], str]:
    """The interfaces, their subnets by id, and the zone."""
    wanted = request.get("NetworkInterfaces")
    if wanted:
        for name, what in (("SubnetId", "subnet ID"), ("SecurityGroupIds", "security groups")):
            if request.get(name):
                raise AwsError(
                    "InvalidParameterCombination",
                    f"Network interfaces and an instance-level {what} may not be specified on the same "
                    f"request",
                )
    else:
        wanted = [
            {
                "DeviceIndex": 0,
                "SubnetId": request.get("SubnetId"),
                "Groups": request.get("SecurityGroupIds"),
                "PrivateIpAddress": request.get("PrivateIpAddress"),
            }
        ]
    found = interfaces(kind, wanted)
    zone = (request.get("Placement") or {}).get("AvailabilityZone")
    subnets: dict[str, Doc] = {}
    checked: list[Interface] = []
    for one in found:
        subnet = request.thing("subnet", one.subnet) if one.subnet else _default_subnet(request, zone)
        subnets[subnet["SubnetId"]] = subnet
        for group in one.groups:
            if request.thing("security-group", group)["VpcId"] != subnet["VpcId"]:
                raise AwsError(
                    "InvalidParameter",
                    f"Security group {group} and subnet {subnet['SubnetId']} belong to different networks.",
                )
        group_named(request, list(one.groups))
        groups = one.groups or (request.thing("vpc", subnet["VpcId"])["_group"],)
        public_ip = one.public
        if public_ip is None:
            # An address is given by the subnet's habit to a single interface only.
            public_ip = bool(subnet["MapPublicIpOnLaunch"]) and len(found) == 1
        checked.append(
            Interface(
                one.card,
                one.device,
                one.kind,
                subnet["SubnetId"],
                tuple(groups),
                public_ip,
                one.address,
                one.delete,
                one.description,
            )
        )
    zones = {subnet["AvailabilityZone"] for subnet in subnets.values()}
    if len(zones) > 1:
        raise AwsError(
            "InvalidParameterCombination",
            "All network interfaces of a launch must be in the same Availability Zone",
        )
    there = zones.pop()
    if zone and zone != there:
        raise AwsError(
            "InvalidParameterValue",
            f"The availability zone '{zone}' is not the one of the subnet ('{there}').",
        )
    return tuple(checked), subnets, there


def _default_subnet(request: Request, zone: str | None) -> Doc:
    default_vpc(request)
    for _, subnet in request.store.each("subnet", request.region):
        if subnet["DefaultForAz"] and zone in (None, subnet["AvailabilityZone"]):
            return subnet
    raise AwsError("VPCIdNotSpecified", "No default VPC for this user")


def _reservation(
    request: Request, kind: Type, zone: str, *, market: str, group: Doc | None, count: int
) -> Doc | None:
    spec = request.get("CapacityReservationSpecification") or {}
    target = (spec.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
    if market == SPOT:
        if not kind.spot:
            raise AwsError("Unsupported", f"Spot instances are not supported for {kind.name}")
        if target or spec.get("CapacityReservationPreference") == "capacity-reservations-only":
            raise AwsError(
                "InvalidParameterCombination", "Spot Instances can't be launched into a Capacity Reservation."
            )
    block = None
    if target:
        found = request.thing("capacity-reservation", target)
        block = found if found["ReservationType"] == "capacity-block" else None
    if (market == "capacity-block") != (block is not None):
        raise AwsError(
            "InvalidParameterCombination",
            "A launch into a Capacity Block needs the market type 'capacity-block' and the Capacity Block "
            "as its "
            "capacity reservation target.",
        )
    if block and group:
        raise AwsError(
            "InvalidParameterCombination",
            "A placement group cannot be specified for a launch into a Capacity Block.",
        )
    wanted = {
        "target": target,
        "preference": spec.get("CapacityReservationPreference"),
        "group": group,
        "market": market,
    }
    return find_reservation(request, wanted, kind, zone, count)


def _how_many(
    request: Request,
    kind: Type,
    zone: str,
    *,
    market: str,
    reservation: Doc | None,
    least: int,
    most: int,
    nics: Sequence[Interface],
    subnets: dict[str, Doc],
) -> int:
    """As many as there is room for, at least `least`. Raises for what there is too little of."""
    count = most
    if reservation:
        count = min(count, reservation_now(request, reservation)["AvailableInstanceCount"])
    else:
        left, limit = vcpus_left(request, kind, market)
        if least * kind.vcpus > left:
            if market == SPOT:
                raise AwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
            raise too_many_vcpus(limit)
        count = min(count, int(left // kind.vcpus))
        there = capacity_left(request, kind.name, zone, market)
        if there is not None:
            if there < least:
                raise insufficient(request, kind.name, zone)
            count = min(count, there)
    check_interface_quota(request, least * len(nics))
    for subnet_id, subnet in subnets.items():
        each = sum(one.subnet == subnet_id and one.kind != "efa-only" for one in nics)
        if each:
            room = free_addresses(request, subnet) // each
            if room < least:
                raise no_free(subnet_id)
            count = min(count, room)
    return count


# -- the instance ------------------------------------------------------------------------------------------


def _make(request: Request, launch: Launch, reservation_id: str, number: int) -> Doc:
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
        "Tags": _own_tags(launch),
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


def _own_tags(launch: Launch) -> list[Doc]:
    tags = {tag["Key"]: tag["Value"] for tag in launch.tags}
    if launch.template:
        tags["aws:ec2launchtemplate:id"] = launch.template["LaunchTemplateId"]
        tags["aws:ec2launchtemplate:version"] = str(launch.template["VersionNumber"])
    return tag_list(tags)


def _interface(request: Request, launch: Launch, one: Interface, instance: str, now: float) -> Doc:
    subnet = launch.subnets[one.subnet or ""]
    attachment: Doc = {
        "AttachTime": stamp(now),
        "AttachmentId": request.cloud.new_id("eni-attach"),
        "DeleteOnTermination": one.delete,
        "DeviceIndex": one.device,
        "NetworkCardIndex": one.card,
        "Status": "attached",
    }
    made = make_interface(
        request,
        subnet,
        one.groups,
        owner=instance,
        kind=one.kind,
        description=one.description,
        address=one.address,
        attachment={**attachment, "InstanceId": instance},
    )
    shown = {**public(made), "Attachment": attachment}
    if one.public and one.kind != "efa-only" and (one.card, one.device) == (0, 0):
        address = public_address(request)
        shown["Association"] = {
            "IpOwnerId": "amazon",
            "PublicIp": address,
            "PublicDnsName": public_name(request, address),
        }
    shown.pop("AvailabilityZone", None)
    return shown


def _disks(request: Request, launch: Launch, now: float) -> list[Doc]:
    root = launch.image["RootDeviceName"]
    asked = {
        one["DeviceName"]: one for one in launch.merged.get("BlockDeviceMappings") or () if one.get("Ebs")
    }
    found = []
    for name in dict.fromkeys([root, *asked]):
        settings = (asked.get(name) or {}).get("Ebs") or {}
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
        found.append(
            {
                "DeviceName": name,
                "Ebs": {
                    "VolumeId": volume,
                    "Status": "attached",
                    "AttachTime": stamp(now),
                    "DeleteOnTermination": settings.get("DeleteOnTermination", True),
                },
            }
        )
    return found
