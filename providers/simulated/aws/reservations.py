"""Placement groups, capacity reservations and the capacity there is. Sources: ../README.md, "Capacity"."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from orch.providers.simulated.aws.data import Type, regions, types, vcpu_quota
from orch.providers.simulated.aws.errors import AwsError, missing
from orch.providers.simulated.aws.network import account_of, zone_of
from orch.providers.simulated.aws.registry import Request, action, page, path, public, select, stamp
from orch.providers.simulated.store import Doc

ON_DEMAND, SPOT = "on-demand", "spot"

BLOCK_GRACE_S = 30 * 60
"""Instances of a Capacity Block are terminated this long before its end."""


# -- how much there is -------------------------------------------------------------------------------------


def capacity_left(request: Request, kind: str, zone: str, market: str = ON_DEMAND) -> int | None:
    """How many more instances of a type a zone has, None where the account sets no limit."""
    knobs = request.cloud.knobs_now()
    table = knobs.spot_capacity if market == SPOT else knobs.capacity
    limit = next((table[key] for key in (f"{kind}@{zone}", f"*@{zone}", kind) if key in table), None)
    return None if limit is None else max(0, limit - request.store.weight(pool(kind, zone), market))


def pool(kind: str, zone: str) -> str:
    return f"pool {kind}@{zone}"


def occupy(request: Request, thing: str, kind: Type, zone: str, *, market: str, count: int = 1) -> None:
    """`thing` takes instances of a pool and counts towards the vCPU quota."""
    request.store.refer(thing, pool(kind.name, zone), market, count)
    request.store.refer(thing, f"vcpus {request.region} {kind.group}", market, kind.vcpus * count)


def vacate(request: Request, thing: str, market: str) -> None:
    request.store.unrefer(thing, market)


def vcpus_left(request: Request, kind: Type, market: str) -> tuple[float, float]:
    """(what is left, the quota)."""
    limit = request.cloud.quota(vcpu_quota(kind.group, market).code)
    return limit - request.store.weight(f"vcpus {request.region} {kind.group}", market), limit


def insufficient(request: Request, kind: str, zone: str) -> AwsError:
    others = ", ".join(z.name for z in regions()[request.region] if z.name != zone)
    return AwsError(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested "
        f"({zone}). Our "
        f"system will be working on provisioning additional capacity. You can currently get {kind} "
        f"capacity by not "
        f"specifying an Availability Zone in your request or choosing {others}.",
    )


def too_many_vcpus(limit: float, code: str = "VcpuLimitExceeded") -> AwsError:
    return AwsError(
        code,
        f"You have requested more vCPU capacity than your current vCPU limit of {limit:g} allows for the "
        f"instance "
        "bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request "
        "to request an adjustment to this limit.",
    )


def offered_in(request: Request, kind: str) -> list[str]:
    """The zones of the region that have this type."""
    named = request.cloud.knobs_now().offered.get(kind)
    return [z.name for z in regions()[request.region] if named is None or z.name in named]


def check_offered(request: Request, kind: str, zone: str) -> None:
    zones = offered_in(request, kind)
    if zone not in zones:
        elsewhere = f" or choosing {', '.join(zones)}" if zones else ""
        raise AwsError(
            "Unsupported",
            f"Your requested instance type ({kind}) is not supported in your requested Availability Zone "
            f"({zone}). "
            f"Please retry your request by not specifying an Availability Zone{elsewhere}.",
        )


# -- placement groups --------------------------------------------------------------------------------------


@action("CreatePlacementGroup")
def create_placement_group(request: Request) -> Doc:
    name = request["GroupName"]
    if request.store.find("placement-group", name, request.region):
        raise AwsError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    if request.store.tally("placement-group", request.region) >= request.cloud.quota("placement-groups"):
        raise AwsError(
            "PlacementGroupLimitExceeded", "The maximum number of placement groups has been reached."
        )
    strategy = request.get("Strategy", "cluster")
    if strategy not in {"cluster", "spread", "partition"}:
        raise AwsError("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
    group = request.cloud.new_id("pg")
    doc: Doc = {
        "GroupId": group,
        "GroupName": name,
        "GroupArn": request.arn(f"placement-group/{name}"),
        "Strategy": strategy,
        "State": "available",
        "Tags": request.tags_for("placement-group"),
    }
    if strategy == "partition":
        doc["PartitionCount"] = request.get("PartitionCount", 2)
    if strategy == "spread":
        doc["SpreadLevel"] = request.get("SpreadLevel", "rack")
    return {"PlacementGroup": public(request.add(group, "placement-group", doc, name))}


def placement_group(request: Request, *, name: str | None = None, group_id: str | None = None) -> Doc:
    found = group_id or request.store.find("placement-group", name or "", request.region)
    if found is None:
        raise missing("placement-group", name or "")
    return request.thing("placement-group", found)


@action("DescribePlacementGroups")
def describe_placement_groups(request: Request) -> Doc:
    fields = {
        "group-name": path("GroupName"),
        "group-arn": path("GroupArn"),
        "strategy": path("Strategy"),
        "state": path("State"),
    }
    ids = list(request.get("GroupIds") or ())
    ids += [placement_group(request, name=name)["GroupId"] for name in request.get("GroupNames") or ()]
    return {"PlacementGroups": [public(d) for d in select(request, "placement-group", fields, ids=ids)]}


@action("DeletePlacementGroup")
def delete_placement_group(request: Request) -> Doc:
    group = placement_group(request, name=request["GroupName"])
    if request.store.referrers(group["GroupId"], "placed"):
        raise AwsError(
            "InvalidPlacementGroup.InUse",
            f"The placement group '{group['GroupName']}' is in use and may not be deleted.",
        )
    request.store.remove(group["GroupId"])
    return {}


def check_placement(request: Request, group: Doc, kind: Type, zone: str) -> None:
    """Whether an instance or a reservation of this type may go into the group."""
    if group["Strategy"] != "cluster":
        return
    if not kind.cluster:
        raise AwsError(
            "InvalidParameterCombination",
            f"Placement groups may not be used with instances of type '{kind.name}'.",
        )
    for member, _ in request.store.referrers(group["GroupId"], "placed")[:1]:
        doc = request.store.get(member) or {}
        there = doc.get("AvailabilityZone") or (doc.get("Placement") or {}).get("AvailabilityZone")
        if there != zone:
            raise AwsError(
                "InvalidParameterCombination",
                f"The placement group '{group['GroupName']}' is in Availability Zone {there}; a cluster "
                f"placement "
                f"group cannot span Availability Zones ({zone} was requested).",
            )


# -- capacity reservations ---------------------------------------------------------------------------------


def known_type(name: str) -> Type:
    found = types().get(name)
    if found is None:
        raise AwsError("InvalidParameterValue", f"Invalid value '{name}' for InstanceType.")
    return found


@action("CreateCapacityReservation")
def create_capacity_reservation(request: Request) -> Doc:
    kind = known_type(request["InstanceType"])
    zone, zone_id = zone_of(request, request.get("AvailabilityZone"), request.get("AvailabilityZoneId"))
    count = int(request["InstanceCount"])
    if not 1 <= count <= 1000:
        raise AwsError("InvalidParameterValue", f"Value ({count}) for parameter instanceCount is invalid.")
    if request.get("EndDateType") == "limited" and not request.get("EndDate"):
        raise AwsError("MissingParameter", "The request must contain the parameter EndDate")
    check_offered(request, kind.name, zone)
    group: Doc | None = None
    if request.get("PlacementGroupArn"):
        group = placement_group(request, name=str(request["PlacementGroupArn"]).rpartition("/")[2])
        if group["Strategy"] != "cluster":
            raise AwsError(
                "InvalidParameterValue",
                "Capacity Reservations can be created in cluster placement groups only",
            )
        check_placement(request, group, kind, zone)
    _need(request, kind, zone, count)
    reservation = request.cloud.new_id("cr")
    now = request.cloud.now()
    doc: Doc = {
        "CapacityReservationId": reservation,
        "CapacityReservationArn": request.arn(f"capacity-reservation/{reservation}"),
        "OwnerId": account_of(request),
        "InstanceType": kind.name,
        "InstancePlatform": request["InstancePlatform"],
        "AvailabilityZone": zone,
        "AvailabilityZoneId": zone_id,
        "Tenancy": request.get("Tenancy", "default"),
        "TotalInstanceCount": count,
        "EbsOptimized": bool(request.get("EbsOptimized")),
        "EphemeralStorage": bool(request.get("EphemeralStorage")),
        "State": "active",
        "StartDate": stamp(now),
        "CreateDate": stamp(now),
        "EndDateType": request.get("EndDateType", "unlimited"),
        "InstanceMatchCriteria": request.get("InstanceMatchCriteria", "open"),
        "ReservationType": "default",
        "Tags": request.tags_for("capacity-reservation"),
    }
    if request.get("EndDate"):
        doc["EndDate"] = str(request["EndDate"])
    if group:
        doc["PlacementGroupArn"] = group["GroupArn"]
    request.add(reservation, "capacity-reservation", doc)
    occupy(request, reservation, kind, zone, market=ON_DEMAND, count=count)
    if group:
        request.store.refer(reservation, group["GroupId"], "placed")
    return {"CapacityReservation": reservation_now(request, doc)}


def _need(request: Request, kind: Type, zone: str, count: int) -> None:
    """A reservation is whole or not at all."""
    left, limit = vcpus_left(request, kind, ON_DEMAND)
    if count * kind.vcpus > left:
        raise too_many_vcpus(limit, "InstanceLimitExceeded")
    there = capacity_left(request, kind.name, zone)
    if there is not None and there < count:
        raise insufficient(request, kind.name, zone)


def add_capacity_block(
    request: Request,
    kind: str,
    zone: str,
    count: int,
    *,
    start: float,
    end: float,
    tags: list[Doc] | None = None,
) -> Doc:
    """A bought Capacity Block: there from `start` to `end` (seconds of the epoch)."""
    name, zone_id = zone_of(request, zone)
    reservation = request.cloud.new_id("cr")
    doc: Doc = {
        "CapacityReservationId": reservation,
        "CapacityReservationArn": request.arn(f"capacity-reservation/{reservation}"),
        "OwnerId": account_of(request),
        "InstanceType": known_type(kind).name,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": name,
        "AvailabilityZoneId": zone_id,
        "Tenancy": "default",
        "TotalInstanceCount": count,
        "EbsOptimized": True,
        "EphemeralStorage": False,
        "State": "scheduled",
        "StartDate": stamp(start),
        "CreateDate": stamp(min(start, request.cloud.now())),
        "EndDate": stamp(end),
        "EndDateType": "limited",
        "InstanceMatchCriteria": "targeted",
        "ReservationType": "capacity-block",
        "Tags": tags or [],
        "_start": start,
        "_end": end,
    }
    request.add(reservation, "capacity-reservation", doc)
    return doc


def reservation_now(request: Request, doc: Doc) -> Doc:
    """With the state and the free instances it has by now."""
    used = request.store.weight(doc["CapacityReservationId"], "reserved")
    state, now = doc["State"], request.cloud.now()
    if "_start" in doc and state != "cancelled":
        state = "scheduled" if now < doc["_start"] else "expired" if now >= doc["_end"] else "active"
    elif doc.get("EndDateType") == "limited" and state == "active" and now >= _seconds(doc["EndDate"]):
        state = "expired"
    total = doc["TotalInstanceCount"] if state in {"active", "scheduled"} else 0
    free = max(0, total - used) if state == "active" else 0
    return public({**doc, "State": state, "TotalInstanceCount": total, "AvailableInstanceCount": free})


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00").replace(" ", "T")).timestamp()


@action("DescribeCapacityReservations")
def describe_capacity_reservations(request: Request) -> Doc:
    fields = {
        "instance-type": path("InstanceType"),
        "state": path("State"),
        "availability-zone": path("AvailabilityZone"),
        "placement-group-arn": path("PlacementGroupArn"),
        "owner-id": path("OwnerId"),
        "reservation-type": path("ReservationType"),
        "instance-match-criteria": path("InstanceMatchCriteria"),
    }
    ids = request.get("CapacityReservationIds") or ()
    if ids:
        docs = []
        for one in ids:
            found = request.store.get(one, "capacity-reservation")
            if found is None or found["_region"] != request.region:
                raise missing("capacity-reservation", one)
            docs.append(found)
    else:
        docs = [doc for _, doc in request.store.each("capacity-reservation", request.region, gone=True)]
    docs = [reservation_now(request, doc) for doc in docs]
    return page(request, "CapacityReservations", select(request, "capacity-reservation", fields, docs=docs))


@action("ModifyCapacityReservation")
def modify_capacity_reservation(request: Request) -> Doc:
    doc = request.thing("capacity-reservation", request["CapacityReservationId"])
    if doc["State"] != "active":
        raise AwsError(
            "IncorrectState", f"The capacity reservation '{doc['CapacityReservationId']}' is {doc['State']}"
        )
    count = request.get("InstanceCount")
    if count is not None and count != doc["TotalInstanceCount"]:
        used = request.store.weight(doc["CapacityReservationId"], "reserved")
        if count < used:
            raise AwsError(
                "InvalidParameterValue",
                f"Value ({count}) for parameter instanceCount is invalid. {used} instances run in the "
                f"reservation.",
            )
        kind = known_type(doc["InstanceType"])
        if count > doc["TotalInstanceCount"]:
            _need(request, kind, doc["AvailabilityZone"], count - doc["TotalInstanceCount"])
        doc["TotalInstanceCount"] = count
        occupy(
            request,
            doc["CapacityReservationId"],
            kind,
            doc["AvailabilityZone"],
            market=ON_DEMAND,
            count=count,
        )
    for key in ("EndDateType", "EndDate", "InstanceMatchCriteria"):
        if request.get(key) is not None:
            doc[key] = str(request[key])
    request.add(doc["CapacityReservationId"], "capacity-reservation", doc)
    return {"Return": True}


@action("CancelCapacityReservation")
def cancel_capacity_reservation(request: Request) -> Doc:
    doc = request.thing("capacity-reservation", request["CapacityReservationId"])
    if doc["ReservationType"] == "capacity-block":
        raise AwsError("UnsupportedOperation", "A Capacity Block cannot be cancelled.")
    reservation = doc["CapacityReservationId"]
    runs = [source for source, _ in request.store.referrers(reservation, "reserved")]
    request.add(reservation, "capacity-reservation", {**doc, "State": "cancelled"})
    request.store.end(reservation)
    kind = known_type(doc["InstanceType"])
    for instance in runs:
        # They go on running, outside of a reservation.
        request.store.unrefer(instance, "reserved")
        occupy(request, instance, kind, doc["AvailabilityZone"], market=ON_DEMAND)
        running = request.store.get(instance, "instance")
        if running:
            running.pop("CapacityReservationId", None)
            request.add(instance, "instance", running)
    return {"Return": True}


def find_reservation(
    request: Request, wanted: dict[str, Any], kind: Type, zone: str, count: int
) -> Doc | None:
    """The reservation a launch goes into: the one it names, else an open one that matches.

    `wanted`: `target` (id), `preference`, `group` (placement group), `market`. Raises what a launch into a
    reservation that cannot take it is answered.
    """
    exceeded = AwsError(
        "ReservationCapacityExceeded",
        "The requested reservation does not have sufficient compatible and available capacity for this "
        "request.",
    )
    group = wanted["group"]["GroupArn"] if wanted["group"] else None
    if wanted["target"]:
        doc = request.thing("capacity-reservation", wanted["target"])
        now = reservation_now(request, doc)
        if now["State"] == "scheduled":
            raise AwsError(
                "InvalidCapacityReservationState.PendingActivation", "Your Capacity Block is not active yet."
            )
        same = (now["InstanceType"], now["AvailabilityZone"]) == (kind.name, zone)
        if now["State"] != "active" or not same or now["AvailableInstanceCount"] < count:
            raise exceeded
        if group and now.get("PlacementGroupArn") not in (None, group):
            raise exceeded
        if group and now.get("PlacementGroupArn") is None and now["ReservationType"] == "default":
            # A reservation outside a group holds no capacity inside it.
            raise exceeded
        return doc
    if wanted["market"] != ON_DEMAND or wanted["preference"] == "none":
        return None
    for _, doc in request.store.each("capacity-reservation", request.region):
        now = reservation_now(request, doc)
        if (
            now["State"] == "active"
            and now["InstanceMatchCriteria"] == "open"
            and (now["InstanceType"], now["AvailabilityZone"]) == (kind.name, zone)
            and now.get("PlacementGroupArn") == group
            and now["AvailableInstanceCount"] >= count
        ):
            return doc
    if wanted["preference"] == "capacity-reservations-only":
        raise exceeded
    return None
