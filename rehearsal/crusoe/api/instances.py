"""VMs: what is refused at once, what only by their operation, and how a VM comes up and goes.

A create is accepted; where there is no stock its operation fails with `out_of_stock`, and the VM is gone.
Source: crusoecloud/client-go swagger/v1/swagger.json; crusoecloud/terraform-provider-crusoe internal/vm.
"""

from __future__ import annotations

import hashlib
import ipaddress
from typing import Any

from orch.rehearsal.crusoe.api.bodies import CreateInstance, checked
from orch.rehearsal.crusoe.api.catalog import (
    free_machines,
    free_slices,
    quota_error,
    reservation_has_room,
)
from orch.rehearsal.crusoe.api.errors import OUT_OF_STOCK, bad_request, not_found
from orch.rehearsal.crusoe.api.routes import existing, looked_at, made, operation, route
from orch.rehearsal.crusoe.data.tables import IMAGES, TAGS, IbNetwork, Kind, ib_networks, kinds
from orch.rehearsal.http_service import Answer, Request, stamp
from orch.rehearsal.store import Doc

BASE = "/projects/{p}/compute/vms/instances"
STEPS = ("STATE_INITIALIZING", "STATE_STARTING", "STATE_RUNNING")
PER_POD = 32
"""VMs of a rail-optimised pod. Source: docs.crusoecloud.com, command-center/topology."""


# -- what is refused at once


@route("POST", BASE, "create instance")
def create(request: Request) -> Answer:
    body = checked(CreateInstance, request.body)
    kind = kinds().get(body.type)
    if kind is None or body.location not in kind.locations:
        raise bad_request(f"type {body.type} is not available in {body.location}")
    if bool(body.image) == bool(body.custom_image):
        raise bad_request("exactly one of image and custom_image")
    name, _, tag = (body.image or "").partition(":")
    if name not in IMAGES or tag not in TAGS:
        raise bad_request(f"image {body.image} is not known")
    if not body.startup_script.isascii():
        raise bad_request("startup_script: ASCII")
    if body.startup_script and not body.startup_script.startswith("#!/bin/bash"):
        raise bad_request("startup_script: begins with #!/bin/bash")
    subnet = _subnet(request, body)
    network, partition = _ib_network(request, body, kind)
    disks = [existing(request, "disk", each.disk_id) for each in body.disks]
    for disk in disks:
        if disk["location"] != body.location:
            raise bad_request(f"disk {disk['name']} is in {disk['location']}")
        if any(disk["id"] in each["_disks"] for each in request.each("instance")):
            raise bad_request(f"disk {disk['name']} is attached already")
    if refusal := quota_error(request, kind):
        raise refusal
    slices = free_slices(request, network) if network is not None else None
    there = slices >= kind.slices if slices is not None else free_machines(request, kind, body.location) > 0
    reserved = (body.reservation_specification and body.reservation_specification.id) or ""
    there = there and (not reserved or reservation_has_room(request, reserved, kind, body.location))
    public = bool(body.network_interfaces and body.network_interfaces[0].ips)
    doc = made(
        request,
        "instance",
        {
            "name": body.name,
            "type": body.type,
            "location": body.location,
            "state": STEPS[0],
            "billing_type": "On-demand",
            "disks": [{"id": each["id"], "attachment_type": "data"} for each in disks],
            "host_channel_adapters": [each.model_dump() for each in body.host_channel_adapters],
            "network_interfaces": [],
            "reservation_id": reserved,
            "_subnet": subnet["id"],
            "_partition": partition,
            "_ib_network": network.id if network is not None else None,
            "_disks": [each["id"] for each in disks],
            "_holds": there,
            "_lacks": not there,
            "_looks": 0,
            "_since": request.account.now(),
            "_public": public,
            "_script": body.startup_script,
            "_key": body.ssh_public_key,
        },
    )
    return operation(request, doc["id"], result=None, fails=None if there else OUT_OF_STOCK)


def _subnet(request: Request, body: CreateInstance) -> Doc:
    if not body.network_interfaces:
        raise bad_request("network_interfaces: the location has no default subnet")
    subnet = existing(request, "subnet", body.network_interfaces[0].subnet)
    if subnet["location"] != body.location:
        raise bad_request(f"subnet {subnet['name']} is in {subnet['location']}")
    return subnet


def _ib_network(request: Request, body: CreateInstance, kind: Kind) -> tuple[IbNetwork | None, str | None]:
    """The InfiniBand network of a VM's partition, and the partition."""
    wanted = [each.ib_partition_id or each.transport_partition_id for each in body.host_channel_adapters]
    if not wanted:
        return None, None
    if not kind.slices:
        raise bad_request(f"type {kind.name} has no host channel adapters")
    partition = existing(request, "ib-partition", wanted[0])
    network = ib_networks()[partition["ib_network_id"]]
    if network.location != body.location:
        raise bad_request(f"partition {partition['name']} is in {network.location}")
    if network.kind != kind.name:
        raise bad_request(f"partition {partition['name']} is for {network.kind}")
    return network, str(partition["id"])


# -- how it comes up, and goes


def seen(request: Request, doc: Doc) -> Doc | None:
    """A VM, looked at once more: it takes the next step where its time has come; None: it is gone."""
    looks = doc["_looks"] + 1
    knobs, age = request.account.knobs_now(), request.account.now() - doc["_since"]
    doc = {**doc, "_looks": looks}
    if doc["state"] == "STATE_DELETING":
        if looks < 2 or age < knobs.shutting_down_s:
            put(request, doc)
            return doc
        request.store.remove(doc["id"])
        return None
    if doc["_lacks"] and looks >= 2:
        request.store.remove(doc["id"])
        return None
    if doc["state"] in STEPS[:2] and not doc["_lacks"]:
        doc["state"] = STEPS[min(looks, 2) if age >= knobs.pending_s else 1]
        if doc["state"] == STEPS[2]:
            doc |= _running(request, doc)
            request.account.note("born", doc["id"])
    put(request, doc)
    return doc


def put(request: Request, doc: Doc) -> None:
    request.store.put(doc["id"], "instance", doc["location"], doc)


def _running(request: Request, doc: Doc) -> Doc:
    ip: Doc = {"private_ipv4": {"address": _address(request, doc)}}
    if doc["_public"]:
        ip["public_ipv4"] = {"address": _public(request, doc["id"]), "type": "dynamic"}
    subnet = existing(request, "subnet", doc["_subnet"])
    nic = {"subnet": subnet["id"], "network": subnet["vpc_network_id"], "ips": [ip]}
    found: Doc = {"network_interfaces": [nic]}
    if doc["_ib_network"]:
        mates = [each["id"] for each in request.each("instance") if each["_ib_network"] == doc["_ib_network"]]
        pod = f"{request.account.seed} {doc['_ib_network']} {mates.index(doc['id']) // PER_POD}"
        found["pod_id"] = f"pod-{hashlib.sha256(pod.encode()).hexdigest()[:12]}"
    return found


def _address(request: Request, doc: Doc) -> str:
    block = ipaddress.ip_network(existing(request, "subnet", doc["_subnet"])["cidr"])
    return next(
        str(block[number])
        for number in range(3, block.num_addresses - 1)
        if request.store.take(f"addresses {doc['_subnet']}", str(block[number]), doc["id"])
    )


def _public(request: Request, instance: str) -> str:
    number = next(n for n in range(1, 65_536) if request.store.take("public addresses", str(n), instance))
    return f"198.18.{number // 256}.{number % 256}"  # RFC 2544: of nobody


def ended(request: Request, doc: Doc) -> None:
    """A VM that is off: by its own power button, or because its host is down."""
    request.account.note("dead", doc["id"])
    put(request, {**doc, "state": "STATE_SHUTOFF", "_holds": False})


# -- routes


@route("GET", BASE, "list instance")
def instances(request: Request) -> Answer:
    known = [found for doc in list(request.each("instance")) if (found := seen(request, doc)) is not None]
    if names := request.query.get("names"):
        known = [doc for doc in known if doc["name"] in names.split(",")]
    size, start = int(request.query.get("limit", "50")), int(request.query.get("next_token", "0"))
    page: dict[str, Any] = {"items": known[start : start + size]}
    if start + size < len(known):
        page["next_token"] = str(start + size)
    return Answer(200, page)


@route("GET", f"{BASE}/operations/{{id}}", "operation instance")
def of_operation(request: Request) -> Answer:
    return looked_at(request)


@route("GET", f"{BASE}/{{id}}", "get instance")
def get(request: Request) -> Answer:
    found = seen(request, existing(request, "instance"))
    if found is None:
        return Answer(404, {"code": "404", "message": not_found("instance").message})
    return Answer(200, found)


@route("DELETE", f"{BASE}/{{id}}", "delete instance")
def delete(request: Request) -> Answer:
    """With its OS disk; data disks stay. The VM is there for a while yet."""
    doc = existing(request, "instance")
    if doc["state"] != "STATE_DELETING":
        request.account.note("dead", doc["id"])
        gone = {"state": "STATE_DELETING", "_holds": False, "_looks": 0, "_since": request.account.now()}
        put(request, {**doc, **gone, "updated_at": stamp(request.account.now())})
    return operation(request, doc["id"])
