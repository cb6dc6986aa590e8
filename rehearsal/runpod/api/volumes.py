"""Network volumes: in one data center, and never smaller than they were. Names need not be unique.

Source: runpod/docs api-reference-v2/openapi.json, /v2/network-volumes. What the delete of a volume in use
answers is not documented: here it is a 400 that says so.
"""

from __future__ import annotations

from orch.rehearsal.http_service import Answer, Request
from orch.rehearsal.runpod.api.bodies import CreateVolume, UpdateVolume, checked
from orch.rehearsal.runpod.api.errors import RunpodError
from orch.rehearsal.runpod.api.routes import existing, new_id, page, route
from orch.rehearsal.runpod.data.tables import data_centers
from orch.rehearsal.store import Doc

KIND = "network-volume"


@route("POST", "/v2/network-volumes", "createNetworkVolume")
def create(request: Request) -> Answer:
    body = checked(CreateVolume, request.body)
    if body.dataCenter not in data_centers():
        raise RunpodError(400, f"unknown data center {body.dataCenter}")
    volume_id = new_id(request, KIND)
    doc: Doc = {"id": volume_id, **body.model_dump(), "type": body.type or "STANDARD"}
    request.store.put(volume_id, KIND, "", doc, body.name)
    return Answer(201, doc)


@route("GET", "/v2/network-volumes", "listNetworkVolumes")
def list_volumes(request: Request) -> Answer:
    return page(request, "networkVolumes", list(request.each(KIND)))


@route("GET", "/v2/network-volumes/{id}", "getNetworkVolume")
def get(request: Request) -> Answer:
    return Answer(200, existing(request, KIND))


@route("PATCH", "/v2/network-volumes/{id}", "updateNetworkVolume")
def update(request: Request) -> Answer:
    volume, body = existing(request, KIND), checked(UpdateVolume, request.body)
    changes = body.model_dump(exclude_none=True)
    if not changes:
        raise RunpodError(422, "Request validation failed.", errors=["$: at least one property"])
    if changes.get("size", volume["size"]) < volume["size"]:
        raise RunpodError(400, "network volume size cannot be reduced")
    volume |= changes
    request.store.put(volume["id"], KIND, "", volume, volume["name"])
    return Answer(200, volume)


@route("DELETE", "/v2/network-volumes/{id}", "deleteNetworkVolume")
def delete(request: Request) -> Answer:
    volume = existing(request, KIND)
    users = request.store.referrers(volume["id"], "mount")
    if users:
        raise RunpodError(400, f"network volume is in use by pod {users[0][0]}")
    request.store.remove(volume["id"])
    return Answer(204)
