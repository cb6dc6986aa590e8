"""Regions, zones, machine types and images of Compute Engine, and the quotas of a project.

Sources: rehearsal/README.md, "GCP: quotas" and "GCP: tables".
"""

from __future__ import annotations

from orch.rehearsal.gcp.api.errors import not_found
from orch.rehearsal.gcp.api.methods import API, Request, method, stamp
from orch.rehearsal.gcp.api.quotas import rows, used_by_project, used_in_region
from orch.rehearsal.gcp.data.tables import Type, images, quotas, regions, types, zones
from orch.rehearsal.store import Doc


def number(text: str) -> str:
    """The permanent numeric id of a public resource."""
    return str(1000 + sum(ord(letter) * 31**index for index, letter in enumerate(text[:10])))


@method("projects.get", "GET", "")
def get_project(request: Request) -> Doc:
    metrics = [(metric, used_by_project(request, metric)) for metric in quotas()["project"]]
    return {
        "kind": "compute#project",
        "id": request.cloud.identity(number(request.project)),
        "name": request.project,
        "selfLink": API + f"projects/{request.project}",
        "creationTimestamp": stamp(0),
        "quotas": rows(request, metrics),
        "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "AAAAAAAAAAA="},
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


def _region(request: Request, name: str) -> Doc:
    metrics = [(metric, used_in_region(request, metric, name)) for metric in quotas()["region"]]
    return {
        "kind": "compute#region",
        "id": number(name),
        "name": name,
        "description": name,
        "status": "UP",
        "creationTimestamp": stamp(0),
        "selfLink": f"{API}projects/{request.project}/regions/{name}",
        "zones": [f"{API}projects/{request.project}/zones/{zone}" for zone in regions()[name]],
        "quotas": rows(request, metrics),
    }


@method("regions.get", "GET", "regions/{region}")
def get_region(request: Request) -> Doc:
    name = request.words["region"]
    if name not in regions():
        raise not_found(f"projects/{request.project}/regions/{name}")
    return _region(request, name)


@method("regions.list", "GET", "regions")
def list_regions(request: Request) -> Doc:
    return request.page([_region(request, name) for name in regions()], "region")


def _zone(request: Request, name: str) -> Doc:
    return {
        "kind": "compute#zone",
        "id": number(name),
        "name": name,
        "description": name,
        "status": "UP",
        "creationTimestamp": stamp(0),
        "region": f"{API}projects/{request.project}/regions/{zones()[name]}",
        "selfLink": f"{API}projects/{request.project}/zones/{name}",
    }


@method("zones.get", "GET", "zones/{zone}")
def get_zone(request: Request) -> Doc:
    name = request.words["zone"]
    if name not in zones():
        raise not_found(f"projects/{request.project}/zones/{name}")
    return _zone(request, name)


@method("zones.list", "GET", "zones")
def list_zones(request: Request) -> Doc:
    return request.page([_zone(request, name) for name in zones()], "zone")


# -- machine types -----------------------------------------------------------------------------------------


def offered(request: Request, kind: Type, zone: str) -> bool:
    return zone in request.cloud.knobs_now().offered.get(kind.name, kind.zones)


def _machine_type(request: Request, kind: Type, zone: str) -> Doc:
    doc: Doc = {
        "kind": "compute#machineType",
        "id": number(kind.name),
        "name": kind.name,
        "description": f"{kind.vcpus} vCPUs {kind.memory_mb // 1024} GB RAM",
        "guestCpus": kind.vcpus,
        "memoryMb": kind.memory_mb,
        "zone": zone,
        "creationTimestamp": stamp(0),
        "selfLink": f"{API}projects/{request.project}/zones/{zone}/machineTypes/{kind.name}",
        "isSharedCpu": kind.name in {"e2-micro", "e2-small", "e2-medium"},
        "architecture": kind.arch,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
    }
    if kind.gpu:
        doc["accelerators"] = [{"guestAcceleratorType": kind.gpu, "guestAcceleratorCount": kind.gpus}]
    if kind.disks[0]:
        doc["bundledLocalSsds"] = {"partitionCount": kind.disks[0], "defaultInterface": "NVME"}
    return doc


@method("machineTypes.get", "GET", "zones/{zone}/machineTypes/{machineType}")
def get_machine_type(request: Request) -> Doc:
    zone, kind = request.words["zone"], types().get(request.words["machineType"])
    if zone not in zones():
        raise not_found(f"projects/{request.project}/zones/{zone}")
    if kind is None or not offered(request, kind, zone):
        raise not_found(request.path("machineTypes", request.words["machineType"]))
    return _machine_type(request, kind, zone)


@method("machineTypes.list", "GET", "zones/{zone}/machineTypes")
def list_machine_types(request: Request) -> Doc:
    zone = request.words["zone"]
    if zone not in zones():
        raise not_found(f"projects/{request.project}/zones/{zone}")
    rows_ = [_machine_type(request, kind, zone) for kind in types().values() if offered(request, kind, zone)]
    return request.page(rows_, "machineType")


# -- images ------------------------------------------------------------------------------------------------


def image_named(path: str) -> Doc | None:
    """A public image by path: a release, or the newest image of a family."""
    words = path.split("/")
    if len(words) < 5 or words[3] != "images":
        return None
    project, name = words[1], words[-1]
    by_family = words[4] == "family"
    rows = [
        row
        for row in images()
        if row["project"] == project and row["family" if by_family else "name"] == name
    ]
    return _image(dict(rows[-1])) if rows else None


def _image(row: Doc) -> Doc:
    return {
        "kind": "compute#image",
        "id": number(row["name"]),
        "name": row["name"],
        "family": row["family"],
        "diskSizeGb": str(row["gb"]),
        "architecture": row["arch"],
        "status": "READY",
        "sourceType": "RAW",
        "creationTimestamp": stamp(0),
        "selfLink": f"{API}projects/{row['project']}/global/images/{row['name']}",
    }


@method("images.getFromFamily", "GET", "global/images/family/{family}")
def get_from_family(request: Request) -> Doc:
    path = f"projects/{request.project}/global/images/family/{request.words['family']}"
    image = image_named(path)
    if image is None:
        raise not_found(path)
    return image


@method("images.get", "GET", "global/images/{image}")
def get_image(request: Request) -> Doc:
    path = request.path("images", request.words["image"])
    image = image_named(path)
    if image is None:
        raise not_found(path)
    return image


@method("images.list", "GET", "global/images")
def list_images(request: Request) -> Doc:
    rows = [_image(dict(row)) for row in images() if row["project"] == request.project]
    return request.page(rows, "image")
