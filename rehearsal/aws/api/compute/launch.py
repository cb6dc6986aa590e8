"""RunInstances: the request, the checks whether it may launch, and the instances that it creates.

Sources: rehearsal/README.md, "Launch".
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orch.rehearsal.aws.api.actions import Request, action, public, tag_list
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
from orch.rehearsal.aws.api.compute.new_instances import Launch, create_instance
from orch.rehearsal.aws.api.compute.offerings import image_named
from orch.rehearsal.aws.api.compute.placement_groups import check_placement, placement_group
from orch.rehearsal.aws.api.compute.reservations import find_reservation, reservation_now
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.api.network.addresses import check_interface_quota
from orch.rehearsal.aws.api.network.interfaces import InterfaceRequest, launch_interfaces
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
    instances = [create_instance(request, launch, reservation_id, number) for number in range(launch.count)]
    if token:
        ids = [doc["InstanceId"] for doc in instances]
        request.store.put_token(token, {"digest": digest, "reservation": reservation_id, "instances": ids})
    return _response(request, reservation_id, instances)


def _response(request: Request, reservation_id: str, instances: Sequence[Doc]) -> Doc:
    return {
        "ReservationId": reservation_id,
        "OwnerId": request.owner,
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
    nics, subnets, zone = launch_interfaces(launch_request, kind)
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
    if reservation:
        room = int(reservation_now(launch_request, reservation)["AvailableInstanceCount"])
    else:
        room = _room(launch_request, kind, zone, market=market, least=least)
    check_interface_quota(launch_request, least * len(nics))
    count = min(most, room, *_address_rooms(launch_request, nics, subnets, least=least))
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


def _room(request: Request, kind: Type, zone: str, *, market: str, least: int) -> int:
    """The number of instances that quota and capacity allow. Raises the error of what lacks for `least`."""
    vcpus, limit = vcpus_left(request, kind, market)
    if least * kind.vcpus > vcpus:
        if market == SPOT:
            raise AwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        raise too_many_vcpus(limit)
    capacity = capacity_left(request, kind.name, zone, market)
    if capacity is not None and capacity < least:
        raise insufficient(request, kind.name, zone)
    by_quota = int(vcpus // kind.vcpus)
    return by_quota if capacity is None else min(by_quota, capacity)


def _address_rooms(
    request: Request, nics: Sequence[InterfaceRequest], subnets: Mapping[str, Doc], *, least: int
) -> Iterator[int]:
    """The number of instances that each subnet has addresses for. Raises the error of one that is short."""
    for subnet_id, subnet in subnets.items():
        each = sum(one.subnet == subnet_id and one.kind != "efa-only" for one in nics)
        if each:
            room = free_addresses(request, subnet) // each
            if room < least:
                raise no_free(subnet_id)
            yield room
