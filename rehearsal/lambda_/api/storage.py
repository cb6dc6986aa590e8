"""File systems. Source: Lambda Cloud API 1.10, listFilesystems, createFilesystem, filesystemDelete."""

from __future__ import annotations

from orch.rehearsal.http_service import Answer, Request, stamp
from orch.rehearsal.lambda_.api.bodies import CreateFileSystem, checked
from orch.rehearsal.lambda_.api.errors import duplicate, file_system_in_use, invalid
from orch.rehearsal.lambda_.api.routes import existing, new_id, region_of, route, told
from orch.rehearsal.lambda_.data.tables import REGIONS


def _in_use(request: Request, resource: str) -> bool:
    return any(resource in doc["_mounts"].values() for doc in request.each("instance"))


@route("GET", "/file-systems", "list filesystem")
def file_systems(request: Request) -> Answer:
    return told([{**doc, "is_in_use": _in_use(request, doc["id"])} for doc in request.each("filesystem")])


@route("POST", "/filesystems", "create filesystem")
def create(request: Request) -> Answer:
    body = checked(CreateFileSystem, request.body)
    if body.region not in REGIONS:
        raise invalid(f"region {body.region}")
    if any(doc["name"] == body.name for doc in request.each("filesystem")):
        raise duplicate(f"The filesystem {body.name}")
    doc = {
        "id": new_id(request, "filesystem"),
        "name": body.name,
        "mount_point": f"/lambda/nfs/{body.name}",
        "created": stamp(request.account.now()),
        "created_by": {"id": "u", "email": "me@example.com", "status": "active"},
        "is_in_use": False,
        "region": region_of(body.region),
        "bytes_used": 0,
    }
    request.store.put(doc["id"], "filesystem", body.region, doc)
    return told(doc)


@route("DELETE", "/filesystems/{id}", "delete filesystem")
def delete(request: Request) -> Answer:
    doc = existing(request, "filesystem")
    if _in_use(request, doc["id"]):
        raise file_system_in_use()
    request.store.remove(doc["id"])
    return told({"deleted_ids": [doc["id"]]})
