"""Instances: the request, its checks, and what changes one.

Sources: rehearsal/README.md, "GCP: instances".
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from orch.rehearsal.gcp.api import labels
from orch.rehearsal.gcp.api.compute import disks, reservations, scheduling
from orch.rehearsal.gcp.api.compute.capacity import capacity_left, exhausted, occupy
from orch.rehearsal.gcp.api.compute.endings import end
from orch.rehearsal.gcp.api.compute.instance_templates import template_named
from orch.rehearsal.gcp.api.compute.offerings import offered
from orch.rehearsal.gcp.api.compute.resource_policies import check_room
from orch.rehearsal.gcp.api.errors import GcpError, invalid, not_found, required
from orch.rehearsal.gcp.api.methods import API, Request, checked_name, fingerprint, method
from orch.rehearsal.gcp.api.network import interfaces
from orch.rehearsal.gcp.api.quotas import charge, need_machines
from orch.rehearsal.gcp.data.tables import Type, types, zones
from orch.rehearsal.nodes.user_data import host_key_attributes, host_seed, public_key
from orch.rehearsal.store import Doc

RACK, BLOCK = 8, 64
"""Hosts of a sub-block, and of a block."""


@dataclass(frozen=True)
class InstanceRequest:
    """A checked request for an instance, without its addresses and disks."""

    name: str
    kind: Type
    zone: str
    scheduling: scheduling.Scheduling
    interfaces: tuple[interfaces.InterfaceRequest, ...]
    disks: tuple[disks.DiskRequest, ...]
    policies: tuple[str, ...]
    doc: Doc


@method("instances.insert", "POST", "zones/{zone}/instances")
def insert(request: Request) -> Doc:
    if request.words["zone"] not in zones():
        raise not_found(f"projects/{request.project}/zones/{request.words['zone']}")
    body = dict(request.body)
    template = request.params.get("sourceInstanceTemplate") or body.pop("sourceInstanceTemplate", None)
    if template:
        _, template_doc = template_named(request, "sourceInstanceTemplate", template)
        body = {**template_doc["properties"], **body}
    path = request.path("instances", checked_name(body))
    if request.store.get(path, "instance") is not None:
        raise GcpError("alreadyExists", f"The resource '{path}' already exists")
    instance = checked(request, body)
    if instance.scheduling.model == "FLEX_START" and instance.scheduling.run_s is None:
        raise required("resource.scheduling.maxRunDuration")
    doc = make(request, instance)
    request.cloud.note("born", path)
    return doc


def checked(request: Request, body: Doc) -> InstanceRequest:
    """The request of an instance, from its own fields and its template's. Raises what the call itself
    answers."""
    zone = request.words["zone"]
    kind = _machine_type(request, body.get("machineType"), zone)
    _check_accelerators(body, kind)
    metadata = {
        "labels": labels.checked_labels(body.get("labels"), "resource.labels"),
        "tags": labels.checked_tags(body.get("tags"), "resource.tags"),
        "metadata": labels.checked_metadata(body.get("metadata"), "resource.metadata"),
    }
    if len(body.get("serviceAccounts") or ()) > 1:
        raise invalid("resource.serviceAccounts", "", "At most one service account is allowed.")
    return InstanceRequest(
        name=checked_name(body),
        kind=kind,
        zone=zone,
        scheduling=scheduling.checked(body, kind, "resource", request.cloud.now()),
        interfaces=interfaces.checked(request, body.get("networkInterfaces") or [], kind, zone),
        disks=disks.checked(request, body.get("disks") or [], kind, zone, "resource"),
        policies=_policies(request, body.get("resourcePolicies") or [], zone),
        doc={**body, **metadata},
    )


def _machine_type(request: Request, value: object, zone: str) -> Type:
    if not value:
        raise required("resource.machineType")
    words = str(value).split("/")
    name, field = words[-1], "resource.machineType"
    link_zone = words[words.index("zones") + 1] if "zones" in words else zone
    kind = types().get(name)
    if kind is None or not offered(request, kind, zone) or link_zone != zone:
        link = f"{API}projects/{request.project}/zones/{link_zone}/machineTypes/{name}"
        why = f"Machine type with name '{name}' does not exist in zone '{zone}'."
        if link_zone != zone:
            why = f"The machine type is of zone '{link_zone}', the instance of zone '{zone}'."
        raise invalid(field, link, why)
    return kind


def _check_accelerators(body: Doc, kind: Type) -> None:
    for row in body.get("guestAccelerators") or ():
        name = str(row.get("acceleratorType", "")).rpartition("/")[2]
        if (name, int(row.get("acceleratorCount") or 0)) != (kind.gpu, kind.gpus):
            raise GcpError(
                "badRequest",
                f"[{kind.name}, {name}:{row.get('acceleratorCount')}] features are not compatible "
                "for creating instance.",
            )


def _policies(request: Request, rows: list[str], zone: str) -> tuple[str, ...]:
    """Paths of resource policies; a template has their names within the region."""
    field, paths = "resource.resourcePolicies[0]", []
    if len(rows) > 1:
        raise invalid("resource.resourcePolicies", "", "At most one resource policy is allowed.")
    for row in rows:
        bare = f"regions/{zones()[zone]}/resourcePolicies/{row}" if "/" not in row else row
        path = request.link(field, bare)
        request.thing("resource-policy", path)
        if path.split("/")[3] != zones()[zone]:
            raise invalid(field, path, "The resource policy is not in the instance's region.")
        paths.append(path)
    return tuple(paths)


def find_capacity(request: Request, instance: InstanceRequest, count: int = 1) -> str | None:
    """Check quota, placement, reservation and capacity for `count` instances; returns the reservation that
    they run in, or None.

    Raises the operation's error.
    """
    preemptible = instance.scheduling.preemptible
    need_machines(request, instance.kind, zones()[instance.zone], preemptible=preemptible, count=count)
    for policy in instance.policies:
        check_room(request, policy, instance.kind, instance.zone, count)
    reserved = reservations.reservation_for(
        request, instance.scheduling, instance.kind, instance.zone, list(instance.policies)
    )
    if reserved is None:
        capacity = capacity_left(request, instance.kind, instance.zone, spot=instance.scheduling.spot)
        if capacity is not None and capacity < count:
            raise exhausted(request, instance.kind, instance.zone, spot=instance.scheduling.spot)
    return reserved


def make(request: Request, instance: InstanceRequest, **more: object) -> Doc:
    """Create one instance. Raises the operation's error."""
    reserved = find_capacity(request, instance)
    path, spot = request.path("instances", instance.name), instance.scheduling.spot
    zone_link = f"{API}projects/{request.project}/zones/{instance.zone}"
    body = instance.doc
    doc: Doc = {
        "description": body.get("description", ""),
        "machineType": f"{zone_link}/machineTypes/{instance.kind.name}",
        "cpuPlatform": "Unknown CPU Platform",
        "canIpForward": bool(body.get("canIpForward")),
        "networkInterfaces": interfaces.attach(request, path, instance.interfaces),
        "disks": disks.attach(request, path, instance.name, instance.disks),
        "metadata": body["metadata"],
        "labels": body["labels"],
        "labelFingerprint": fingerprint(body["labels"]),
        "tags": body["tags"],
        "scheduling": instance.scheduling.doc,
        "serviceAccounts": body.get("serviceAccounts") or [],
        "resourcePolicies": [API + policy for policy in instance.policies],
        "deletionProtection": bool(body.get("deletionProtection")),
        "shieldedInstanceConfig": body.get("shieldedInstanceConfig") or {},
        "startRestricted": False,
        "_ready": request.cloud.now() + request.cloud.knobs_now().pending_s,
        "_host": _host(request, instance),
        **more,
    }
    if body.get("reservationAffinity"):
        doc["reservationAffinity"] = body["reservationAffinity"]
    if instance.kind.gpu:
        kind = f"{zone_link}/acceleratorTypes/{instance.kind.gpu}"
        doc["guestAccelerators"] = [{"acceleratorType": kind, "acceleratorCount": instance.kind.gpus}]
    doc = request.headed(path, "instance", doc)
    doc["lastStartTimestamp"] = doc["creationTimestamp"]
    ends = instance.scheduling.ends
    if instance.scheduling.run_s is not None:
        ends = request.cloud.now() + instance.scheduling.run_s
    if ends is not None:
        request.store.put_meta("ends", {**(request.store.meta("ends") or {}), path: ends})
    request.add(path, "instance", doc)
    charge(request, path, instance.kind, zones()[instance.zone], preemptible=instance.scheduling.preemptible)
    for policy in instance.policies:
        request.store.refer(path, policy, "placed")
    if reserved is None:
        occupy(request, path, instance.kind, instance.zone, spot=spot)
    else:
        request.store.refer(path, reserved, reservations.TAKES)
    return doc


def _host(request: Request, instance: InstanceRequest) -> str | None:
    """The position of an instance: block, sub-block, host. Only placed instances and dense types show it."""
    if not instance.policies and not instance.kind.dense:
        return None
    number = request.store.count(f"host {instance.kind.name}@{instance.zone}")
    slot = (number - 1) * 13 % BLOCK + (number - 1) // BLOCK * BLOCK
    # Neighbours in time are no neighbours in the hall.

    def word(kind: str, value: int) -> str:
        text = f"{request.cloud.seed} {kind} {instance.kind.name} {instance.zone} {value}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    return f"/{word('block', slot // BLOCK)}/{word('sub-block', slot // RACK)}/{word('host', slot)}"


def current(request: Request, doc: Doc) -> Doc:
    """An instance with its current state."""
    running = request.cloud.now() >= doc["_ready"] and not doc.get("_stopped")
    status: Doc = {"scheduling": {"availabilityDomain": 0}}
    if running and doc.get("_host"):
        block, sub, host = doc["_host"].strip("/").split("/")
        status["physicalHost"] = doc["_host"]
        status["physicalHostTopology"] = {"block": block, "subblock": sub, "host": host}
    state = "TERMINATED" if doc.get("_stopped") else "RUNNING" if running else "STAGING"
    return {**doc, "status": state, "resourceStatus": status}


@method("instances.get", "GET", "zones/{zone}/instances/{instance}")
def get(request: Request) -> Doc:
    return current(request, request.thing("instance", request.path("instances", request.words["instance"])))


@method("instances.getGuestAttributes", "GET", "zones/{zone}/instances/{instance}/getGuestAttributes")
def get_guest_attributes(request: Request) -> Doc:
    """The guest attributes that a machine wrote: the host key that its user data creates, and the key of its
    own sshd from Google's agent."""
    path = request.path("instances", request.words["instance"])
    doc = request.thing("instance", path)
    query = str(request.params.get("queryPath") or request.params.get("variableKey") or "")
    attributes: dict[str, str] = {}
    metadata = {item["key"]: str(item["value"]) for item in doc["metadata"].get("items") or ()}
    enabled = metadata.get("enable-guest-attributes", "").lower() in {"true", "1", "y", "yes"}
    if enabled and current(request, doc)["status"] == "RUNNING":
        attributes = dict.fromkeys(
            host_key_attributes(metadata.get("user-data", "").encode()),
            public_key(host_seed(request.cloud.seed, path)),
        )
        agent = public_key(host_seed(request.cloud.seed, f"agent of {path}"))
        attributes["hostkeys/ssh-ed25519"] = agent.split()[1]
    matches = {
        key: value
        for key, value in attributes.items()
        if key == query or (query.endswith("/") and key.startswith(query)) or not query
    }
    if not matches:
        raise GcpError("notFound", f"The resource '{query}' of type 'Guest Attribute' was not found.")
    items = [
        {"namespace": key.partition("/")[0], "key": key.partition("/")[2], "value": value}
        for key, value in sorted(matches.items())
    ]
    result: Doc = {"kind": "compute#guestAttributes", "selfLink": f"{API}{path}/getGuestAttributes"}
    if request.params.get("variableKey"):
        return {**result, "variableKey": query, "variableValue": items[0]["value"]}
    return {**result, "queryPath": query, "queryValue": {"items": items}}


@method("instances.list", "GET", "zones/{zone}/instances")
def list_instances(request: Request) -> Doc:
    if request.words["zone"] not in zones():
        raise not_found(f"projects/{request.project}/zones/{request.words['zone']}")
    rows = [current(request, doc) for _, doc in request.each("instance", request.scope)]
    return request.page(rows, "instance")


@method("instances.setLabels", "POST", "zones/{zone}/instances/{instance}/setLabels")
def set_labels(request: Request) -> Doc:
    return labels.relabel(request, request.path("instances", request.words["instance"]), "instance")


@method("instances.setTags", "POST", "zones/{zone}/instances/{instance}/setTags")
def set_tags(request: Request) -> Doc:
    path = request.path("instances", request.words["instance"])
    doc = request.thing("instance", path)
    if request.body.get("fingerprint") != doc["tags"]["fingerprint"]:
        raise GcpError("conditionNotMet", "Supplied fingerprint does not match current tags fingerprint.")
    doc["tags"] = labels.checked_tags(request.body, "tags")
    return request.add(path, "instance", doc)


@method("instances.setMetadata", "POST", "zones/{zone}/instances/{instance}/setMetadata")
def set_metadata(request: Request) -> Doc:
    path = request.path("instances", request.words["instance"])
    doc = request.thing("instance", path)
    if request.body.get("fingerprint") != doc["metadata"]["fingerprint"]:
        raise GcpError("conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
    doc["metadata"] = labels.checked_metadata(request.body, "metadata")
    return request.add(path, "instance", doc)


@method("instances.setDeletionProtection", "POST", "zones/{zone}/instances/{instance}/setDeletionProtection")
def set_deletion_protection(request: Request) -> Doc:
    path = request.path("instances", request.words["instance"])
    doc = request.thing("instance", path)
    doc["deletionProtection"] = str(request.params.get("deletionProtection", "true")).lower() == "true"
    return request.add(path, "instance", doc)


@method("instances.delete", "DELETE", "zones/{zone}/instances/{instance}")
def delete(request: Request) -> Doc:
    path = request.path("instances", request.words["instance"])
    doc = request.thing("instance", path)
    if doc["deletionProtection"]:
        raise GcpError(
            "invalidUsage",
            f"Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.': "
            f"'{path}'.",
        )
    end(request, path, doc)
    return doc
