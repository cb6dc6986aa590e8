"""SSH keys. Source: Lambda Cloud API 1.10, listSshKeys, addSshKey, deleteSshKey."""

from __future__ import annotations

from orch.rehearsal.http_service import Answer, Request
from orch.rehearsal.lambda_.api.bodies import CreateKey, checked
from orch.rehearsal.lambda_.api.errors import duplicate
from orch.rehearsal.lambda_.api.routes import existing, new_id, route, told

PATH = "/ssh-keys"


@route("GET", PATH, "list ssh-key")
def keys(request: Request) -> Answer:
    return told(list(request.each("ssh-key")))


@route("POST", PATH, "create ssh-key")
def create(request: Request) -> Answer:
    body = checked(CreateKey, request.body)
    if any(doc["name"] == body.name for doc in request.each("ssh-key")):
        raise duplicate(f"The SSH key {body.name}")
    doc = {"id": new_id(request, "ssh-key"), "name": body.name, "public_key": body.public_key}
    request.store.put(doc["id"], "ssh-key", "", doc)
    return told(doc)


@route("DELETE", f"{PATH}/{{id}}", "delete ssh-key")
def delete(request: Request) -> Answer:
    doc = existing(request, "ssh-key")
    request.store.remove(doc["id"])
    return told({})
