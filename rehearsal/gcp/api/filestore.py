"""Filestore: zonal instances, by the methods of file.googleapis.com.

Sources: rehearsal/README.md, "GCP: Filestore".

A method that changes something answers an operation of Filestore's own, which is over when the instance is.
"""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Network

from orch.rehearsal.gcp.api.errors import GcpError, invalid, not_found
from orch.rehearsal.gcp.api.labels import checked_labels
from orch.rehearsal.gcp.api.methods import NAME, Request, method, public, stamp
from orch.rehearsal.gcp.api.quotas import limit
from orch.rehearsal.gcp.data.tables import zones
from orch.rehearsal.store import Doc

KIND, OPERATION = "filestore-instance", "filestore-operation"
RANGES = ((1024, 9984, 256), (10_240, 102_400, 2560))
"""Least and most GiB and the step of the two ranges of a zonal instance."""
CAPACITY = "FILESTORE_ZONAL_GB"
_AT = "locations/{location}/instances"


@method("instances.insert", "POST", _AT, mutates=False, service="file")
def insert(request: Request) -> Doc:
    name, zone = str(request.params.get("instanceId") or ""), request.words["location"]
    path = _path(request, name)
    if not NAME.fullmatch(name):
        raise invalid("instanceId", name, f"Must be a match of regex '{NAME.pattern}'")
    if zone not in zones():
        raise invalid("parent", zone, "A zonal instance is in a zone.")
    if request.store.get(path, KIND) is not None:
        raise GcpError("alreadyExists", f"Resource '{path}' already exists")
    body = request.body
    if body.get("tier") != "ZONAL":
        raise invalid("instance.tier", body.get("tier"), "The simulated project has zonal instances only.")
    shares = body.get("fileShares") or []
    if len(shares) != 1:
        raise invalid("instance.file_shares", len(shares), "An instance has one file share.")
    size = int(shares[0].get("capacityGb") or 0)
    _range(size)
    share = str(shares[0].get("name") or "")
    if not share.replace("_", "").isalnum() or len(share) > 16:
        raise invalid("instance.file_shares.name", share, "At most 16 letters, digits and underscores.")
    _check_quota(request, size)
    networks = body.get("networks") or []
    if len(networks) != 1:
        raise invalid("instance.networks", len(networks), "An instance is in one network.")
    network = _network(request, str(networks[0].get("network") or ""))
    labels = checked_labels(body.get("labels"), "instance.labels")
    reserved = str(networks[0].get("reservedIpRange") or "")
    now, number = request.cloud.now(), request.store.count("filestore addresses")
    doc: Doc = {
        "name": path,
        "description": body.get("description", ""),
        "createTime": stamp(now),
        "tier": "ZONAL",
        "labels": labels,
        "fileShares": [{"name": share, "capacityGb": str(size)}],
        "networks": [
            {
                "network": networks[0]["network"],
                "modes": ["MODE_IPV4"],
                "connectMode": networks[0].get("connectMode") or "DIRECT_PEERING",
                "reservedIpRange": reserved or f"172.28.{number % 256}.0/26",
                "ipAddresses": [_second(reserved) if reserved else f"172.28.{number % 256}.2"],
            }
        ],
        "protocol": body.get("protocol") or "NFS_V3",
        "etag": hashlib.sha256(path.encode()).hexdigest()[:16],
        "_since": now,
    }
    request.add(path, KIND, doc)
    request.store.refer(path, network, "filestore")
    return _operation(request, path, "create", request.cloud.knobs_now().pending_s)


def _second(block: str) -> str:
    """An address of a block, as an instance takes one. Raises GcpError for a block of another size."""
    try:
        network = IPv4Network(block)
    except ValueError:
        raise invalid("instance.networks.reserved_ip_range", block, "Must be a CIDR block.") from None
    if network.prefixlen not in (24, 26):
        raise invalid("instance.networks.reserved_ip_range", block, "A zonal instance has a /26 or a /24.")
    return str(network.network_address + 2)


@method("instances.get", "GET", f"{_AT}/{{instance}}", service="file")
def get(request: Request) -> Doc:
    return _shown(request, _instance(request))


@method("instances.list", "GET", _AT, service="file")
def list_instances(request: Request) -> Doc:
    zone = request.words["location"]
    location = None if zone == "-" else f"zones/{zone}"
    rows = [doc for _, doc in request.each(KIND, location) if not _gone(request, doc)]
    return {"instances": [_shown(request, doc) for doc in rows]}


@method("instances.patch", "PATCH", f"{_AT}/{{instance}}", mutates=False, service="file")
def patch(request: Request) -> Doc:
    doc = _instance(request)
    if _state(request, doc) != "READY":
        raise GcpError("conditionNotMet", f"The instance is {_state(request, doc)}.")
    mask = str(request.params.get("updateMask") or "").split(",")
    if "fileShares" in mask:
        old, new = (int(each["fileShares"][0]["capacityGb"]) for each in (doc, request.body))
        if _range(old) != _range(new):
            raise invalid("instance.file_shares.capacity_gb", new, "An instance stays in its range of sizes.")
        _check_quota(request, new - old)
        doc["fileShares"] = [{**doc["fileShares"][0], "capacityGb": str(new)}]
    if "labels" in mask:
        doc["labels"] = checked_labels(request.body.get("labels"), "instance.labels")
    if "description" in mask:
        doc["description"] = request.body.get("description", "")
    request.add(doc["name"], KIND, doc)
    return _operation(request, doc["name"], "update", 0.0)


@method("instances.delete", "DELETE", f"{_AT}/{{instance}}", mutates=False, service="file")
def delete(request: Request) -> Doc:
    doc = _instance(request)
    if request.cloud.knobs_now().nodes is not None:
        # The folder that stands for it, as for a disk that is of no instance.
        gone = ["", doc["networks"][0]["ipAddresses"][0], False]
        request.store.put_meta("shown", [*(request.store.meta("shown") or ()), gone])
    lasts = request.cloud.knobs_now().shutting_down_s
    if lasts:
        request.add(doc["name"], KIND, {**doc, "_ends": request.cloud.now() + lasts})
    else:
        request.store.remove(doc["name"])
    return _operation(request, doc["name"], "delete", lasts)


@method("operations.get", "GET", "locations/{location}/operations/{operation}", service="file")
def get_operation(request: Request) -> Doc:
    name = f"projects/{request.project}/locations/{request.words['location']}/operations"
    path = f"{name}/{request.words['operation']}"
    doc = request.thing(OPERATION, path)
    return {**public(doc), "done": request.cloud.now() >= doc["_over"]}


def _operation(request: Request, target: str, verb: str, lasts: float) -> Doc:
    location = target.rpartition("/instances/")[0]
    path = f"{location}/operations/operation-{request.number()}"
    now = request.cloud.now()
    metadata = {"target": target, "verb": verb, "createTime": stamp(now), "apiVersion": "v1"}
    doc: Doc = {"name": path, "metadata": metadata, "_over": now + lasts}
    request.add(path, OPERATION, doc)
    return {**public(doc), "done": not lasts}


def _path(request: Request, name: str) -> str:
    return f"projects/{request.project}/locations/{request.words['location']}/instances/{name}"


def _instance(request: Request) -> Doc:
    path = _path(request, request.words["instance"])
    doc = request.store.get(path, KIND)
    if doc is None or _gone(request, doc):
        raise not_found(path)
    return doc


def _network(request: Request, text: str) -> str:
    """The path of a network, by its path or by its name in the project."""
    path = text if "/" in text else f"projects/{request.project}/global/networks/{text}"
    if request.store.get(path, "network") is None:
        raise not_found(path)
    return path


def _gone(request: Request, doc: Doc) -> bool:
    return "_ends" in doc and doc["_ends"] <= request.cloud.now()


def _state(request: Request, doc: Doc) -> str:
    if "_ends" in doc:
        return "DELETING"
    waits = request.cloud.now() - doc["_since"] < request.cloud.knobs_now().pending_s
    return "CREATING" if waits else "READY"


def _shown(request: Request, doc: Doc) -> Doc:
    return {**public(doc), "state": _state(request, doc)}


def _range(size: int) -> int:
    for index, (low, high, step) in enumerate(RANGES):
        if low <= size <= high and size % step == 0:
            return index
    why = "It is 1024 to 9984 in steps of 256, or 10240 to 102400 in steps of 2560."
    raise invalid("instance.file_shares.capacity_gb", size, why)


def _check_quota(request: Request, more: int) -> None:
    region = zones()[request.words["location"]]
    used = sum(
        int(doc["fileShares"][0]["capacityGb"])
        for path, doc in request.each(KIND)
        if zones().get(path.split("/")[3]) == region and not _gone(request, doc)
    )
    if used + more > limit(request, CAPACITY):
        raise GcpError("quotaExceeded", f"Quota limit '{CAPACITY}' has been exceeded in region {region}.")
