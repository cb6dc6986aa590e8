"""Reservations of an account, and their use. Sources: rehearsal/README.md, "GCP: capacity"."""

from __future__ import annotations

from orch.rehearsal.gcp.api.compute.capacity import capacity_left, exhausted, occupy
from orch.rehearsal.gcp.api.compute.scheduling import Scheduling
from orch.rehearsal.gcp.api.errors import GcpError, in_use, invalid, not_found
from orch.rehearsal.gcp.api.methods import API, Request, method
from orch.rehearsal.gcp.data.tables import Type, types, zones
from orch.rehearsal.store import Doc

BOUND = "RESERVATION_BOUND"
"""The provisioning model that ends with a reservation."""

TAKES = "reserved"
"""How an instance refers to the reservation that it runs in."""


def add(
    request: Request,
    name: str,
    machine_type: str,
    count: int,
    *,
    specific: bool,
    policy: str | None,
    dense: bool = False,
) -> str:
    """Create a reservation; returns its path."""
    zone, kind = request.words["zone"], types().get(machine_type)
    if zone not in zones():
        raise not_found(f"projects/{request.project}/zones/{zone}")
    if kind is None:
        raise not_found(request.path("machineTypes", machine_type))
    path = request.path("reservations", name)
    if request.store.get(path) is not None:
        raise GcpError("alreadyExists", f"The resource '{path}' already exists")
    there = capacity_left(request, kind, zone)
    if there is not None and there < count:
        raise exhausted(request, kind, zone)
    doc: Doc = {
        "status": "READY",
        "specificReservationRequired": specific,
        "specificReservation": {
            "count": str(count),
            "inUseCount": "0",
            "assuredCount": str(count),
            "instanceProperties": {"machineType": machine_type},
        },
        "deploymentType": "DENSE" if dense else "DEPLOYMENT_TYPE_UNSPECIFIED",
        "resourcePolicies": {"policy": API + request.link("resourcePolicies", policy)} if policy else {},
    }
    request.add(path, "reservation", request.headed(path, "reservation", doc))
    occupy(request, path, kind, zone, count=count)
    return path


@method("reservations.insert", "POST", "zones/{zone}/reservations")
def insert(request: Request) -> Doc:
    held = request.body.get("specificReservation") or {}
    machine = str((held.get("instanceProperties") or {}).get("machineType", ""))
    count = int(held.get("count") or 0)
    if not 1 <= count <= 1000:
        raise invalid("resource.specificReservation.count", count, "Must be between 1 and 1000.")
    path, _ = request.new("reservation", "reservations", "reservation")
    policy = next(iter((request.body.get("resourcePolicies") or {}).values()), None)
    specific = bool(request.body.get("specificReservationRequired"))
    add(request, path.rpartition("/")[2], machine, count, specific=specific, policy=policy)
    return request.thing("reservation", path)


def now(request: Request, path: str, doc: Doc) -> Doc:
    """A reservation with its current use."""
    used = len(request.store.referrers(path, TAKES))
    return {**doc, "specificReservation": {**doc["specificReservation"], "inUseCount": str(used)}}


def free(request: Request, path: str, doc: Doc) -> int:
    return int(doc["specificReservation"]["count"]) - len(request.store.referrers(path, TAKES))


def reservation_for(
    request: Request, schedule: Scheduling, kind: Type, zone: str, policies: list[str]
) -> str | None:
    """The reservation that an instance runs in; None for the zone's own capacity.

    A reservation that the instance names must exist, match its type and have capacity. Raises the API's error
    otherwise.
    """
    if schedule.reservations:
        return _target(request, schedule, kind, zone, policies)
    if schedule.any:
        for path, doc in request.each("reservation", f"zones/{zone}"):
            fits = doc["specificReservation"]["instanceProperties"]["machineType"] == kind.name
            if not doc["specificReservationRequired"] and fits and free(request, path, doc) > 0:
                return path
    return None


def _target(request: Request, schedule: Scheduling, kind: Type, zone: str, policies: list[str]) -> str:
    name, field = schedule.reservations[0], "resource.reservationAffinity"
    words = name.strip("/").split("/")
    project = words[1] if words[0] == "projects" and len(words) > 2 else request.project
    short = words[words.index("reservations") + 1] if "reservations" in words else words[-1]
    path = f"projects/{project}/zones/{zone}/reservations/{short}"
    doc = request.store.get(path, "reservation")
    if doc is None:
        raise invalid(field, name, f"Specified reservation '{short}' does not exist.")
    if not doc["specificReservationRequired"]:
        why = f"Specified reservations [projects/{project}/reservations/{short}] can not be targeted as "
        raise invalid(field, name, f"{why}specificReservationRequired is not set")
    if doc["deploymentType"] == "DENSE" and schedule.model != BOUND:
        why = f"Instances consuming DENSE reservations must use provisioningModel {BOUND}."
        raise invalid("resource.scheduling.provisioningModel", schedule.model, why)
    policy = (doc.get("resourcePolicies") or {}).get("policy")
    if policy and policy.removeprefix(API) not in policies:
        raise invalid(field, name, f"Instances of the reservation must have its resource policy '{policy}'.")
    if doc["specificReservation"]["instanceProperties"]["machineType"] != kind.name:
        raise GcpError("CONDITION_NOT_MET", f"No available resources in specified reservations '{short}'")
    if free(request, path, doc) < 1:
        text = f"Specified reservation '{short}' does not have available resources for the request."
        raise GcpError("CONDITION_NOT_MET", text)
    return path


@method("reservations.get", "GET", "zones/{zone}/reservations/{reservation}")
def get(request: Request) -> Doc:
    path = request.path("reservations", request.words["reservation"])
    return now(request, path, request.thing("reservation", path))


@method("reservations.list", "GET", "zones/{zone}/reservations")
def list_reservations(request: Request) -> Doc:
    rows = [now(request, path, doc) for path, doc in request.each("reservation", request.scope)]
    return request.page(rows, "reservation")


@method("reservations.delete", "DELETE", "zones/{zone}/reservations/{reservation}")
def delete(request: Request) -> Doc:
    path = request.path("reservations", request.words["reservation"])
    doc = request.thing("reservation", path)
    users = request.store.referrers(path, TAKES)
    if users and doc["specificReservationRequired"]:
        raise in_use("reservation", path, users[0][0])
    request.store.remove(path)
    return doc
