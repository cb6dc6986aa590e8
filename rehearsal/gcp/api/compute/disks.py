"""Disks that instances are created with. Sources: rehearsal/README.md, "GCP: instances"."""

from __future__ import annotations

from dataclasses import dataclass

from orch.rehearsal.gcp.api.compute.offerings import image_named
from orch.rehearsal.gcp.api.errors import GcpError, in_use, invalid, not_found, required
from orch.rehearsal.gcp.api.methods import API, NAME, Request, fingerprint, method
from orch.rehearsal.gcp.data.tables import Type
from orch.rehearsal.store import Doc

USUAL_TYPE = "pd-standard"
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
    return doc
