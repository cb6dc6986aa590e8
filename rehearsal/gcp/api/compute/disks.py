"""Disks that instances are created with. Sources: rehearsal/README.md, "GCP: instances"."""

from __future__ import annotations

from dataclasses import dataclass

from orch.rehearsal.gcp.api.compute.offerings import image_named
from orch.rehearsal.gcp.api.errors import GcpError, in_use, invalid, not_found, required
from orch.rehearsal.gcp.api.labels import checked_labels
from orch.rehearsal.gcp.api.methods import API, NAME, Request, fingerprint, method
from orch.rehearsal.gcp.data.tables import Type, zones
from orch.rehearsal.store import Doc

USUAL_TYPE = "pd-standard"
# Source: Compute Engine documentation, "About Persistent Disk" and "About Google Cloud Hyperdisk".
SIZES = {
    "pd-standard": (10, 65_536),
    "pd-balanced": (10, 65_536),
    "pd-ssd": (10, 65_536),
    "pd-extreme": (500, 65_536),
    "hyperdisk-balanced": (4, 65_536),
    "hyperdisk-balanced-high-availability": (4, 65_536),
    "hyperdisk-extreme": (64, 65_536),
    "hyperdisk-ml": (4, 65_536),
    "hyperdisk-throughput": (2_048, 32_768),
}
WITH_IOPS = {
    "pd-extreme",
    "hyperdisk-balanced",
    "hyperdisk-balanced-high-availability",
    "hyperdisk-extreme",
}
WITH_THROUGHPUT = {
    "hyperdisk-balanced",
    "hyperdisk-balanced-high-availability",
    "hyperdisk-ml",
    "hyperdisk-throughput",
}
DISK_TYPES = {
    "pd-standard",
    "pd-balanced",
    "pd-ssd",
    "pd-extreme",
    "local-ssd",
    "hyperdisk-balanced",
    "hyperdisk-balanced-high-availability",
    "hyperdisk-extreme",
    "hyperdisk-ml",
    "hyperdisk-throughput",
}


@dataclass(frozen=True)
class DiskRequest:
    """One disk to create. `scratch`: a local disk, which is no resource."""

    image: Doc | None
    type: str
    gb: int
    scratch: bool
    body: Doc


def checked(
    request: Request, rows: list[Doc], kind: Type, zone: str | None, prefix: str
) -> tuple[DiskRequest, ...]:
    """The checked disks of an instance, or of a template (which has no zone). Raises what the API answers."""
    boots = [row for row in rows if row.get("boot")]
    if len(boots) != 1:
        raise invalid(f"{prefix}.disks", len(boots), "Exactly one boot disk must be specified.")
    return tuple(
        _disk(request, row, kind, zone, f"{prefix}.disks[{index}].initializeParams")
        for index, row in enumerate(rows)
    )


def _disk(request: Request, row: Doc, kind: Type, zone: str | None, field: str) -> DiskRequest:
    params: Doc = row.get("initializeParams") or {}
    scratch = row.get("type") == "SCRATCH"
    name = str(params.get("diskType") or ("local-ssd" if scratch else USUAL_TYPE)).rpartition("/")[2]
    if name not in DISK_TYPES:
        type_path = f"projects/{request.project}/zones/{zone or 'ZONE'}/diskTypes/{name}"
        raise invalid(f"{field}.diskType", type_path, f"Disk type with name '{name}' does not exist.")
    if "h" in kind.flags and name.startswith("pd-"):
        raise GcpError("badRequest", f"{name} disk type cannot be used by {kind.name} machine type.")
    if scratch:
        return DiskRequest(None, name, int(params.get("diskSizeGb") or 375), True, row)
    if not params.get("sourceImage"):
        if row.get("boot"):
            raise required(f"{field}.sourceImage")
        return DiskRequest(
            None, name, int(params.get("diskSizeGb") or row.get("diskSizeGb") or 10), False, row
        )
    path = request.link(f"{field}.sourceImage", params["sourceImage"])
    image = image_named(path)
    if image is None:
        raise not_found(path)
    if image["architecture"] != kind.arch:
        raise invalid(
            f"{field}.sourceImage",
            path,
            f"Its architecture {image['architecture']} is not that of {kind.name}.",
        )
    least = int(image["diskSizeGb"])
    size = int(params.get("diskSizeGb") or row.get("diskSizeGb") or least)
    if size < least:
        raise invalid(
            f"{field}.diskSizeGb",
            size,
            f"Requested disk size cannot be smaller than the image size ({least} GB)",
        )
    return DiskRequest(image, name, size, False, row)


def attach(request: Request, owner: str, name: str, disks: tuple[DiskRequest, ...]) -> list[Doc]:
    """Create the disks of a new instance; returns the instance's own rows."""
    rows = []
    for index, one in enumerate(disks):
        body = one.body
        row: Doc = {
            "kind": "compute#attachedDisk",
            "type": "SCRATCH" if one.scratch else "PERSISTENT",
            "mode": "READ_WRITE",
            "index": index,
            "boot": bool(body.get("boot")),
            "autoDelete": bool(body.get("autoDelete")),
            "deviceName": body.get("deviceName") or f"persistent-disk-{index}",
            "diskSizeGb": str(one.gb),
            "interface": "NVME" if one.scratch else body.get("interface", "SCSI"),
        }
        if not one.scratch:
            row["source"] = API + _create_disk(
                request, owner, name if row["boot"] else f"{name}-{index}", one
            )
        if one.image is not None:
            row["architecture"] = one.image["architecture"]
        rows.append(row)
    return rows


def _create_disk(request: Request, owner: str, name: str, one: DiskRequest) -> str:
    params: Doc = one.body.get("initializeParams") or {}
    disk_name = params.get("diskName") or name
    if not NAME.fullmatch(disk_name):
        raise invalid("resource.disks[0].initializeParams.diskName", disk_name, "Must be a valid name.")
    path = request.path("disks", disk_name)
    if request.store.get(path, "disk") is not None:
        raise GcpError("RESOURCE_ALREADY_EXISTS", f"The resource '{path}' already exists")
    labels = params.get("labels") or {}
    zone = f"{API}projects/{request.project}/{request.scope}"
    doc: Doc = {
        "sizeGb": str(one.gb),
        "type": f"{zone}/diskTypes/{one.type}",
        "status": "READY",
        "labels": labels,
        "labelFingerprint": fingerprint(labels),
    }
    if one.image is not None:
        doc["sourceImage"] = one.image["selfLink"]
    request.add(path, "disk", request.headed(path, "disk", doc))
    request.store.refer(owner, path, "disk")
    return path


def detach(request: Request, owner: str, rows: list[Doc]) -> None:
    """Apply the end of an instance to its disks: those with auto-delete go, others stay."""
    for row in rows:
        if row.get("source") and row["autoDelete"]:
            request.store.remove(row["source"].removeprefix(API))
    request.store.unrefer(owner, "disk")


@method("disks.get", "GET", "zones/{zone}/disks/{disk}")
def get(request: Request) -> Doc:
    path = request.path("disks", request.words["disk"])
    doc = request.thing("disk", path)
    users = [API + source for source, _ in request.store.referrers(path, "disk")]
    return {**doc, "users": users} if users else doc


@method("disks.insert", "POST", "zones/{zone}/disks")
def insert(request: Request) -> Doc:
    if request.words["zone"] not in zones():
        raise not_found(f"projects/{request.project}/zones/{request.words['zone']}")
    path, doc = request.new("disk", "disks", "disk", fields=("description", "diskEncryptionKey"))
    name = str(request.body.get("type") or USUAL_TYPE).rpartition("/")[2]
    if name not in DISK_TYPES - {"local-ssd"}:
        type_path = f"projects/{request.project}/{request.scope}/diskTypes/{name}"
        raise invalid("resource.type", type_path, f"Disk type with name '{name}' does not exist.")
    least, most = SIZES[name]
    size = int(request.body.get("sizeGb") or 500)
    if not least <= size <= most:
        word, limit = ("smaller", least) if size < least else ("larger", most)
        raise invalid("resource.sizeGb", size, f"Disk size cannot be {word} than {limit} GB.")
    for key, able in (("provisionedIops", WITH_IOPS), ("provisionedThroughput", WITH_THROUGHPUT)):
        if request.body.get(key) and name not in able:
            raise invalid(f"resource.{key}", request.body[key], f"It cannot be set for disk type '{name}'.")
        if request.body.get(key):
            doc[key] = str(request.body[key])
    tags = checked_labels(request.body.get("labels"), "resource.labels")
    doc |= {
        "sizeGb": str(size),
        "type": f"{API}projects/{request.project}/{request.scope}/diskTypes/{name}",
        "status": "READY",
        "labels": tags,
        "labelFingerprint": fingerprint(tags),
        "physicalBlockSizeBytes": "4096",
    }
    return request.add(path, "disk", doc)


@method("disks.resize", "POST", "zones/{zone}/disks/{disk}/resize")
def resize(request: Request) -> Doc:
    path = request.path("disks", request.words["disk"])
    doc = request.thing("disk", path)
    size = int(request.body.get("sizeGb") or 0)
    if size <= int(doc["sizeGb"]):
        why = f"New disk size '{size}' GB must be larger than existing size '{doc['sizeGb']}' GB."
        raise invalid("sizeGb", size, why)
    doc["sizeGb"] = str(size)
    return request.add(path, "disk", doc)


@method("instances.attachDisk", "POST", "zones/{zone}/instances/{instance}/attachDisk")
def attach_disk(request: Request) -> Doc:
    path = request.path("instances", request.words["instance"])
    instance, body = request.thing("instance", path), request.body
    source = request.link("source", body.get("source") or "")
    disk = request.thing("disk", source)
    mode = body.get("mode") or "READ_WRITE"
    if f"/{request.scope}/" not in source:
        raise invalid("source", source, "The disk and the instance must be in the same zone.")
    users = [owner for owner, _ in request.store.referrers(source, "disk")]
    if users and (mode == "READ_WRITE" or disk.get("_mode") == "READ_WRITE"):
        raise in_use("disk", source, users[0])
    index = max((int(row["index"]) for row in instance["disks"]), default=-1) + 1
    device = body.get("deviceName") or f"persistent-disk-{index}"
    if device in {row["deviceName"] for row in instance["disks"]}:
        raise invalid("deviceName", device, "It is in use on this instance.")
    row: Doc = {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": mode,
        "index": index,
        "boot": False,
        "autoDelete": bool(body.get("autoDelete")),
        "deviceName": device,
        "diskSizeGb": disk["sizeGb"],
        "interface": body.get("interface", "SCSI"),
        "source": API + source,
    }
    request.add(source, "disk", {**disk, "_mode": mode})
    request.store.refer(path, source, "disk")
    instance["disks"] = [*instance["disks"], row]
    return _changed(request, path, instance, device, there=True)


@method("instances.detachDisk", "POST", "zones/{zone}/instances/{instance}/detachDisk")
def detach_disk(request: Request) -> Doc:
    path = request.path("instances", request.words["instance"])
    instance, device = request.thing("instance", path), str(request.params.get("deviceName") or "")
    row = next((each for each in instance["disks"] if each["deviceName"] == device), None)
    if row is None:
        raise invalid("deviceName", device, "No attached disk found with this device name.")
    request.store.unrefer(path, "disk", row["source"].removeprefix(API))
    instance["disks"] = [each for each in instance["disks"] if each is not row]
    return _changed(request, path, instance, device, there=False)


def _changed(request: Request, path: str, instance: Doc, device: str, *, there: bool) -> Doc:
    """The instance with its disks; its local node shows the difference."""
    if request.cloud.knobs_now().nodes is not None:
        changes = [*(request.store.meta("shown") or []), [path, device, there]]
        request.store.put_meta("shown", changes)
    return request.add(path, "instance", instance)


@method("disks.list", "GET", "zones/{zone}/disks")
def list_disks(request: Request) -> Doc:
    return request.page([doc for _, doc in request.each("disk", request.scope)], "disk")


@method("disks.setLabels", "POST", "zones/{zone}/disks/{disk}/setLabels")
def set_labels(request: Request) -> Doc:
    from orch.rehearsal.gcp.api.labels import relabel

    return relabel(request, request.path("disks", request.words["disk"]), "disk")


@method("disks.delete", "DELETE", "zones/{zone}/disks/{disk}")
def delete(request: Request) -> Doc:
    path = request.path("disks", request.words["disk"])
    doc = request.thing("disk", path)
    users = request.store.referrers(path, "disk")
    if users:
        raise in_use("disk", path, users[0][0])
    request.store.remove(path)
    if request.cloud.knobs_now().nodes is not None:
        request.store.put_meta("shown", [*(request.store.meta("shown") or []), ["", doc["name"], False]])
    return doc
