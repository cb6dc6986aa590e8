"""Disks."""

from __future__ import annotations

from orch.rehearsal.crusoe.api.bodies import CreateDisk, checked
from orch.rehearsal.crusoe.api.errors import bad_request, in_use
from orch.rehearsal.crusoe.api.routes import existing, looked_at, made, operation, route
from orch.rehearsal.crusoe.data.tables import locations
from orch.rehearsal.http_service import Answer, Request

BASE = "/projects/{p}/storage/disks"


@route("GET", BASE, "list disk")
def disks(request: Request) -> Answer:
    return Answer(200, {"items": list(request.each("disk"))})


@route("GET", f"{BASE}/operations/{{id}}", "operation disk")
def of_operation(request: Request) -> Answer:
    return looked_at(request)


@route("GET", f"{BASE}/{{id}}", "get disk")
def get(request: Request) -> Answer:
    return Answer(200, existing(request, "disk"))


@route("POST", BASE, "create disk")
def create(request: Request) -> Answer:
    body = checked(CreateDisk, request.body)
    if body.location not in locations():
        raise bad_request(f"location {body.location} is not known")
    doc = made(request, "disk", {**body.model_dump(exclude={"snapshot_id"}), "attached_to": []})
    return operation(request, doc["id"], result=doc)


@route("DELETE", f"{BASE}/{{id}}", "delete disk")
def delete(request: Request) -> Answer:
    doc = existing(request, "disk")
    if any(doc["id"] in each["_disks"] for each in request.each("instance")):
        raise in_use("disk")
    request.store.remove(doc["id"])
    return operation(request, doc["id"])
