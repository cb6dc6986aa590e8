"""RunInstances: the request, and the checks whether it may launch. Sources: rehearsal/README.md, "Launch"."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from orch.rehearsal.aws.api.actions import ACCOUNT, Request, action, public, tag_list
from orch.rehearsal.aws.api.compute.capacity import (
    ON_DEMAND,
    SPOT,
    capacity_left,
    check_offered,
    insufficient,
    known_type,
    too_many_vcpus,
    vcpus_left,
)
from orch.rehearsal.aws.api.compute.launch_templates import key_named, over_template
from orch.rehearsal.aws.api.compute.machines import Launch, make
from orch.rehearsal.aws.api.compute.offerings import image_named
from orch.rehearsal.aws.api.compute.placement_groups import check_placement, placement_group
from orch.rehearsal.aws.api.compute.reservations import find_reservation, reservation_now
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.api.network.addresses import check_interface_quota
from orch.rehearsal.aws.api.network.interfaces import InterfaceRequest, interfaces
from orch.rehearsal.aws.api.network.security_groups import group_named
from orch.rehearsal.aws.api.network.subnets import free_addresses, no_free
from orch.rehearsal.aws.data.tables import Type
from orch.rehearsal.store import Doc

USER_DATA_LIMIT = 16384


@action("RunInstances")
def run_instances(request: Request) -> Doc:
    token = request.get("ClientToken")
    digest = hashlib.sha256(json.dumps(request.params, sort_keys=True, default=str).encode()).hexdigest()
    if token:
        before = request.store.token(token)
        if before is not None:
            return _repeated_response(request, before, digest)
    launch = _checked(request)
    reservation_id = request.cloud.new_id("r")
    instances = [make(request, launch, reservation_id, number) for number in range(launch.count)]
    if token:
        ids = [doc["InstanceId"] for doc in instances]
        request.store.put_token(token, {"digest": digest, "reservation": reservation_id, "instances": ids})
    return _response(request, reservation_id, instances)


def _response(request: Request, reservation_id: str, instances: Sequence[Doc]) -> Doc:
    return {
        "ReservationId": reservation_id,
        "OwnerId": ACCOUNT,
        "Groups": [],
        "Instances": [public(doc) for doc in instances],
    }


def _repeated_response(request: Request, before: Doc, digest: str) -> Doc:
    """The first response again for a repeated client token, without a second launch."""
    if before["digest"] != digest:
        raise AwsError(
            "IdempotentParameterMismatch",
            "Arguments on this idempotent request are inconsistent with arguments used in previous "
            "request(s).",
        )
    instances = [request.thing("instance", one) for one in before["instances"]]
    if any(doc.get("_terminated") for doc in instances):
        raise AwsError(
            "IdempotentInstanceTerminated", "The instance of this idempotent request is terminated."
        )
    return _response(request, before["reservation"], instances)


# -- what is asked for -------------------------------------------------------------------------------------


def _checked(request: Request) -> Launch:
    merged, version = over_template(request)
    launch_request = Request(request.cloud, merged, request.region)
    least, most = int(launch_request.get("MinCount", 1)), int(launch_request.get("MaxCount", 1))
    if least < 1 or most < least:
        raise AwsError("InvalidParameterValue", f"Value ({most}) for parameter maxCount is invalid.")
    kind = known_type(launch_request["InstanceType"])
    image = image_named(launch_request, launch_request["ImageId"])
    if image["Architecture"] != kind.arch:
        raise AwsError(
            "InvalidParameterValue",
            f"The architecture '{kind.arch}' of the specified instance type does not match the architecture "
            f"'{image['Architecture']}' of the specified AMI.",
        )
    _check_user_data(launch_request.get("UserData"))
    _check_disks(launch_request.get("BlockDeviceMappings") or (), image)
    if launch_request.get("KeyName"):
        key_named(launch_request, launch_request["KeyName"])
    profile = _profile(launch_request)
    nics, subnets, zone = _network(launch_request, kind)
    check_offered(launch_request, kind.name, zone)
    placement = launch_request.get("Placement") or {}
    group: Doc | None = None
    if placement.get("GroupName") or placement.get("GroupId"):
        group = placement_group(
            launch_request, name=placement.get("GroupName"), group_id=placement.get("GroupId")
        )
        check_placement(launch_request, group, kind, zone)
    market = ((launch_request.get("InstanceMarketOptions") or {}).get("MarketType")) or ON_DEMAND
    reservation = _reservation(launch_request, kind, zone, market=market, group=group, count=least)
    count = _launch_count(
        launch_request,
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
    for specification in launch_request.get("TagSpecifications") or ():
        tags.setdefault(specification["ResourceType"], {}).update(
            {tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags") or ()}
        )
    _check_shown(launch_request, tags["instance"])
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


def _check_shown(request: Request, tags: Doc) -> None:
    """Check the keys of tags that instances can read from their metadata. Raises InvalidParameterValue."""
    if (request.get("MetadataOptions") or {}).get("InstanceMetadataTags") != "enabled":
        return
    for key in tags:
        if not re.fullmatch(r"[A-Za-z0-9+\-=.,_:@]+", key) or key in (".", "..", "_index"):
            raise AwsError(
                "InvalidParameterValue",
                f"'{key}' is not a valid tag key: letters, digits and + - = . , _ : @ may be read by an "
                "instance, and not '.', '..', '_index'",
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
    profile = request.store.get(f"instance-profile/{name}", "instance-profile")
    if profile is None:
        field = "Name" if spec.get("Name") else "Arn"
        raise AwsError(
            "InvalidParameterValue",
            f"Value ({spec.get(field)}) for parameter iamInstanceProfile.{field.lower()} is invalid. "
            f"Invalid IAM "
            f"Instance Profile {field}",
        )
    if not profile["Roles"]:
        raise AwsError(
            "InvalidParameterValue", f'IAM Instance Profile "{profile["Arn"]}" has no associated IAM Roles'
        )
    return profile


def _network(request: Request, kind: Type) -> tuple[tuple[InterfaceRequest, ...], dict[str, Doc], str]:
    """The interfaces of a launch, their subnets by id, and the zone."""
    rows = request.get("NetworkInterfaces")
    if rows:
        for name, label in (("SubnetId", "subnet ID"), ("SecurityGroupIds", "security groups")):
            if request.get(name):
                raise AwsError(
                    "InvalidParameterCombination",
                    f"Network interfaces and an instance-level {label} may not be specified on the same "
                    f"request",
                )
    else:
        rows = [
            {
                "DeviceIndex": 0,
                "SubnetId": request.get("SubnetId"),
                "Groups": request.get("SecurityGroupIds"),
                "PrivateIpAddress": request.get("PrivateIpAddress"),
            }
        ]
    requested = interfaces(kind, rows)
    zone = (request.get("Placement") or {}).get("AvailabilityZone")
    subnets: dict[str, Doc] = {}
    checked: list[InterfaceRequest] = []
    for one in requested:
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
            public_ip = bool(subnet["MapPublicIpOnLaunch"]) and len(requested) == 1
        checked.append(
            InterfaceRequest(
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
    subnet_zone = zones.pop()
    if zone and zone != subnet_zone:
        raise AwsError(
            "InvalidParameterValue",
            f"The availability zone '{zone}' is not the one of the subnet ('{subnet_zone}').",
        )
    return tuple(checked), subnets, subnet_zone


def _default_subnet(request: Request, zone: str | None) -> Doc:
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
        reservation = request.thing("capacity-reservation", target)
        block = reservation if reservation["ReservationType"] == "capacity-block" else None
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
    criteria = {
        "target": target,
        "preference": spec.get("CapacityReservationPreference"),
        "group": group,
        "market": market,
        "tenancy": (request.get("Placement") or {}).get("Tenancy", "default"),
    }
    return find_reservation(request, criteria, kind, zone, count)


def _launch_count(
    request: Request,
    kind: Type,
    zone: str,
    *,
    market: str,
    reservation: Doc | None,
    least: int,
    most: int,
    nics: Sequence[InterfaceRequest],
    subnets: dict[str, Doc],
) -> int:
    """The number of instances to launch: as many as capacity allows, at least `least`. Raises the error of
    the resource that is short."""
    count = most
    if reservation:
        count = min(count, reservation_now(request, reservation)["AvailableInstanceCount"])
    else:
        vcpus, limit = vcpus_left(request, kind, market)
        if least * kind.vcpus > vcpus:
            if market == SPOT:
                raise AwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
            raise too_many_vcpus(limit)
        count = min(count, int(vcpus // kind.vcpus))
        capacity = capacity_left(request, kind.name, zone, market)
        if capacity is not None:
            if capacity < least:
                raise insufficient(request, kind.name, zone)
            count = min(count, capacity)
    check_interface_quota(request, least * len(nics))
    for subnet_id, subnet in subnets.items():
        each = sum(one.subnet == subnet_id and one.kind != "efa-only" for one in nics)
        if each:
            room = free_addresses(request, subnet) // each
            if room < least:
                raise no_free(subnet_id)
            count = min(count, room)
    return count
