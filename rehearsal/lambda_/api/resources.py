"""What an account has beside instances: SSH keys, file systems, and its inbound rules, one list that a call
overwrites as a whole.

Source: Lambda Cloud API 1.10, listSshKeys, addSshKey, deleteSshKey, listFilesystems, createFilesystem,
filesystemDelete, firewallRulesList, firewallRulesSet.
"""

from __future__ import annotations

from orch.rehearsal.http_service import Answer, Request, stamp
from orch.rehearsal.lambda_.api.bodies import CreateFileSystem, CreateKey, PutRules, checked
from orch.rehearsal.lambda_.api.errors import duplicate, file_system_in_use, invalid
from orch.rehearsal.lambda_.api.routes import existing, new_id, region_of, route, told
from orch.rehearsal.lambda_.data.tables import REGIONS
from orch.rehearsal.store import Doc, Store

KEYS = "/ssh-keys"


@route("GET", KEYS, "list ssh-key")
def keys(request: Request) -> Answer:
    return told(list(request.each("ssh-key")))


@route("POST", KEYS, "create ssh-key")
def create_key(request: Request) -> Answer:
    body = checked(CreateKey, request.body)
    if any(doc["name"] == body.name for doc in request.each("ssh-key")):
        raise duplicate(f"The SSH key {body.name}")
    doc = {"id": new_id(request, "ssh-key"), "name": body.name, "public_key": body.public_key}
    request.store.put(doc["id"], "ssh-key", "", doc)
    return told(doc)


@route("DELETE", f"{KEYS}/{{id}}", "delete ssh-key")
def delete_key(request: Request) -> Answer:
    doc = existing(request, "ssh-key")
    request.store.remove(doc["id"])
    return told({})


def _is_mounted(request: Request, resource: str) -> bool:
    return any(resource in doc["_mounts"].values() for doc in request.each("instance"))


@route("GET", "/file-systems", "list filesystem")
def file_systems(request: Request) -> Answer:
    return told([{**doc, "is_in_use": _is_mounted(request, doc["id"])} for doc in request.each("filesystem")])


@route("POST", "/filesystems", "create filesystem")
def create_file_system(request: Request) -> Answer:
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
def delete_file_system(request: Request) -> Answer:
    doc = existing(request, "filesystem")
    if _is_mounted(request, doc["id"]):
        raise file_system_in_use()
    request.store.remove(doc["id"])
    return told({"deleted_ids": [doc["id"]]})


RULES = "/firewall-rules"
RULES_KEY = "firewall rules"
USUAL: list[Doc] = [
    {
        "protocol": "tcp",
        "port_range": [22, 22],
        "source_network": "0.0.0.0/0",
        "description": "Allow SSH from anywhere",
    },
    {"protocol": "icmp", "source_network": "0.0.0.0/0", "description": "Allow ICMP from anywhere"},
]
"""The rules of an account that nobody has changed. Source: docs.lambda.ai, Firewalls."""


def rules_of(store: Store) -> list[Doc]:
    rules: list[Doc] | None = store.meta(RULES_KEY)
    return USUAL if rules is None else rules


@route("GET", RULES, "firewallRulesList")
def rules(request: Request) -> Answer:
    return told(rules_of(request.store))


@route("PUT", RULES, "firewallRulesSet")
def put_rules(request: Request) -> Answer:
    body = checked(PutRules, request.body)
    for each in body.data:
        if (each.port_range is None) != (each.protocol == "icmp"):
            raise invalid("port_range: not allowed for icmp, and required for the others")
    rows = [each.model_dump(exclude_none=True) for each in body.data]
    request.store.put_meta(RULES_KEY, rows)
    return told(rows)
