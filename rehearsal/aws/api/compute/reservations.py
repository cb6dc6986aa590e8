"""Capacity reservations and Capacity Blocks. Sources: rehearsal/README.md, "Capacity"."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select, stamp
from orch.rehearsal.aws.api.compute.capacity import (
    ON_DEMAND,
    capacity_left,
    check_offered,
    insufficient,
    known_type,
    occupy,
    too_many_vcpus,
    vcpus_left,
)
from orch.rehearsal.aws.api.compute.placement_groups import check_placement, placement_group
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.aws.api.network.subnets import zone_of
from orch.rehearsal.aws.data.tables import Type
from orch.rehearsal.store import Doc


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
        "OwnerId": request.owner,
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
    """Check the capacity for a reservation, which gets all of its instances or fails."""
    available, limit = vcpus_left(request, kind, ON_DEMAND)
    if count * kind.vcpus > available:
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
    """Add a purchased Capacity Block, active from `start` to `end` (seconds since the epoch)."""
    name, zone_id = zone_of(request, zone)
    reservation = request.cloud.new_id("cr")
    doc: Doc = {
        "CapacityReservationId": reservation,
        "CapacityReservationArn": request.arn(f"capacity-reservation/{reservation}"),
        "OwnerId": request.owner,
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
    """A reservation with its current state and free instances."""
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
            reservation = request.store.get(one, "capacity-reservation")
            if reservation is None or reservation["_region"] != request.region:
                raise missing("capacity-reservation", one)
            docs.append(reservation)
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
    request: Request, criteria: dict[str, Any], kind: Type, zone: str, count: int
) -> Doc | None:
    """The reservation that a launch enters: the one that it names, else an open one that matches.

    `criteria`: `target` (id), `preference`, `group` (placement group), `tenancy`, `market`. Raises EC2's
    error for a reservation that cannot take the launch.
    """
    exceeded = AwsError(
        "ReservationCapacityExceeded",
        "The requested reservation does not have sufficient compatible and available capacity for this "
        "request.",
    )
    group = criteria["group"]["GroupArn"] if criteria["group"] else None
    if criteria["target"]:
        doc = request.thing("capacity-reservation", criteria["target"])
        now = reservation_now(request, doc)
        if now["State"] == "scheduled":
            raise AwsError(
                "InvalidCapacityReservationState.PendingActivation", "Your Capacity Block is not active yet."
            )
        same = (now["InstanceType"], now["AvailabilityZone"], now["Tenancy"]) == (
            kind.name,
            zone,
            criteria["tenancy"],
        )
        if now["State"] != "active" or not same or now["AvailableInstanceCount"] < count:
            raise exceeded
        if group and now.get("PlacementGroupArn") not in (None, group):
            raise exceeded
        if group and now.get("PlacementGroupArn") is None and now["ReservationType"] == "default":
            # A reservation outside a group holds no capacity inside it.
            raise exceeded
        return doc
    if criteria["market"] != ON_DEMAND or criteria["preference"] == "none":
        return None
    for _, doc in request.store.each("capacity-reservation", request.region):
        now = reservation_now(request, doc)
        if (
            now["State"] == "active"
            and now["InstanceMatchCriteria"] == "open"
            and (now["InstanceType"], now["AvailabilityZone"]) == (kind.name, zone)
            and now["Tenancy"] == criteria["tenancy"]
            and now.get("PlacementGroupArn") == group
            and now["AvailableInstanceCount"] >= count
        ):
            return doc
    if criteria["preference"] == "capacity-reservations-only":
        raise exceeded
    return None
