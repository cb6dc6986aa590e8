"""GPU clusters, disks, images, platforms, what there is of each type on each fabric, and quotas.

Source: proto nebius.compute.v1, nebius.capacity.v1, nebius.quotas.v1.
"""

from __future__ import annotations

from orch.rehearsal.nebius.api.errors import NebiusError, bad_request, bad_state, not_found, over_quota
from orch.rehearsal.nebius.api.methods import (
    Request,
    existing,
    make,
    method,
    named,
    of_parent,
    operation,
    page,
    put,
    stamp,
)
from orch.rehearsal.nebius.data.tables import IMAGE_FAMILIES, TENANT, Preset, platform_of_fabric, presets
from orch.rehearsal.store import Doc

DISK_TYPES = ("NETWORK_SSD", "NETWORK_HDD", "NETWORK_SSD_NON_REPLICATED", "NETWORK_SSD_IO_M3")
STEPPED = {"NETWORK_SSD_NON_REPLICATED": 93, "NETWORK_SSD_IO_M3": 93}
"""Disk types whose size is a multiple of so many GiB."""

PLENTY = 100
"""Machines that there are of a type whose capacity nobody set."""

# -- GPU clusters


@method("compute.v1.GpuClusterService", "Create")
def create_cluster(request: Request) -> Doc:
    fabric = str((request.body.get("spec") or {}).get("infiniband_fabric") or "")
    if not fabric:
        raise bad_request("spec.infiniband_fabric", "required")
    if (request.region, fabric) not in platform_of_fabric():
        raise bad_request("spec.infiniband_fabric", f"unknown fabric {fabric} in {request.region}")
    cluster_id, _ = make(request, "gpu-cluster", "computegpucluster", {})
    return operation(request, cluster_id)


def members(request: Request, cluster_id: str) -> list[Doc]:
    return [
        doc
        for _, doc in request.store.each("instance")
        if (doc["spec"].get("gpu_cluster") or {}).get("id") == cluster_id
    ]


def _shown(request: Request, doc: Doc) -> Doc:
    """With its machines and where they stand in the network."""
    machines = members(request, doc["metadata"]["id"])
    paths = [
        {"instance_id": each["metadata"]["id"], "path": each["status"]["infiniband_topology_path"]["path"]}
        for each in machines
        if "infiniband_topology_path" in each["status"]
    ]
    status = {"instances": [each["metadata"]["id"] for each in machines]}
    return {**doc, "status": {**status, "infiniband_topology_path": {"instances": paths}}}


@method("compute.v1.GpuClusterService", "Get")
def get_cluster(request: Request) -> Doc:
    return _shown(request, existing(request, "gpu-cluster", str(request.body.get("id") or "")))


@method("compute.v1.GpuClusterService", "GetByName")
def cluster_by_name(request: Request) -> Doc:
    return _shown(request, named(request, "gpu-cluster"))


@method("compute.v1.GpuClusterService", "List")
def clusters(request: Request) -> Doc:
    request.project()
    return page(request, [_shown(request, each) for each in of_parent(request, "gpu-cluster")])


@method("compute.v1.GpuClusterService", "Update")
def update_cluster(request: Request) -> Doc:
    metadata, spec = request.body["metadata"], request.body.get("spec") or {}
    doc = existing(request, "gpu-cluster", str(metadata.get("id") or ""))
    if spec.get("infiniband_fabric") != doc["spec"]["infiniband_fabric"]:
        raise bad_request("spec.infiniband_fabric", "immutable")
    version = int(doc["metadata"]["resource_version"]) + 1
    doc["metadata"] |= {"labels": metadata.get("labels") or {}, "resource_version": str(version)}
    put(request, "gpu-cluster", doc)
    return operation(request, doc["metadata"]["id"])


@method("compute.v1.GpuClusterService", "Delete")
def delete_cluster(request: Request) -> Doc:
    cluster_id = str(request.body.get("id") or "")
    existing(request, "gpu-cluster", cluster_id)
    if members(request, cluster_id):
        raise bad_state(cluster_id, "GPU cluster has instances")
    request.store.remove(cluster_id)
    return operation(request, cluster_id)


# -- disks


def checked_disk(request: Request, spec: Doc, path: str) -> int:
    """The size of a disk in GiB. Raises NebiusError."""
    kind = spec.get("type")
    if kind not in DISK_TYPES:
        raise bad_request(f"{path}.type", "required")
    size = int(spec.get("size_gibibytes") or 0) or int(spec.get("size_bytes") or 0) // 2**30
    if size <= 0:
        raise bad_request(f"{path}.size", "required")
    if size % STEPPED.get(str(kind), 1):
        raise bad_request(f"{path}.size", f"a multiple of {STEPPED[str(kind)]} GiB")
    image = image_of(request, spec, path)
    if image is not None and size * 2**30 < int(image["status"]["min_disk_size_bytes"]):
        raise bad_request(f"{path}.size", "smaller than the image")
    return size


def image_of(request: Request, spec: Doc, path: str) -> Doc | None:
    if image_id := spec.get("source_image_id"):
        image = request.store.get(str(image_id), "image")
        if image is None:
            raise bad_request(f"{path}.source_image_id", f"image {image_id} not found")
        return image
    if family := (spec.get("source_image_family") or {}).get("image_family"):
        return latest(request, str(family), request.region)
    return None


@method("compute.v1.DiskService", "Create")
def create_disk(request: Request) -> Doc:
    size = checked_disk(request, request.body.get("spec") or {}, "spec")
    disk_id, _ = make(request, "disk", "computedisk", {"state": "READY", "size_bytes": str(size * 2**30)})
    return operation(request, disk_id)


@method("compute.v1.DiskService", "Get")
def get_disk(request: Request) -> Doc:
    return existing(request, "disk", str(request.body.get("id") or ""))


@method("compute.v1.DiskService", "GetByName")
def disk_by_name(request: Request) -> Doc:
    return named(request, "disk")


@method("compute.v1.DiskService", "List")
def disks(request: Request) -> Doc:
    request.project()
    return page(request, list(of_parent(request, "disk")))


@method("compute.v1.DiskService", "Delete")
def delete_disk(request: Request) -> Doc:
    disk_id = str(request.body.get("id") or "")
    disk = existing(request, "disk", disk_id)
    if user := disk["status"].get("read_write_attachment"):
        raise bad_state(disk_id, f"disk is attached to {user}")
    request.store.remove(disk_id)
    return operation(request, disk_id)


# -- images and platforms


def latest(request: Request, family: str, region: str) -> Doc:
    images = [doc for _, doc in request.store.each("image", region) if doc["spec"]["image_family"] == family]
    if not images:
        raise not_found(family)
    return images[-1]


@method("compute.v1.ImageService", "GetLatestByFamily")
def latest_image(request: Request) -> Doc:
    """`parent_id`: the project of the images; the public ones of a region have one of their own."""
    family = str(request.body.get("image_family") or "")
    public = str(request.body.get("parent_id") or "")
    region = public.removeprefix("project-").removesuffix("public-images")
    return latest(request, family, region)


@method("compute.v1.ImageService", "Get")
def get_image(request: Request) -> Doc:
    return existing(request, "image", str(request.body.get("id") or ""))


@method("compute.v1.ImageService", "ListPublic")
def public_images(request: Request) -> Doc:
    return page(
        request, [doc for _, doc in request.store.each("image", str(request.body.get("region") or ""))]
    )


def public_image(region: str, family: str, release: int, image_id: str) -> Doc:
    """A release of a public image."""
    status = {"state": "READY", "min_disk_size_bytes": str(IMAGE_FAMILIES[family] * 2**30)}
    metadata = {
        "id": image_id,
        "parent_id": f"project-{region}public-images",
        "name": f"{family}-v{release}",
        "resource_version": "1",
    }
    return {
        "metadata": metadata,
        "spec": {"image_family": family, "version": f"v{release}"},
        "status": status,
    }


@method("compute.v1.PlatformService", "List")
def platforms(request: Request) -> Doc:
    region = request.region
    rows: dict[str, Doc] = {}
    for each in presets().values():
        if region not in each.regions:
            continue
        row = rows.setdefault(
            each.platform,
            {
                "metadata": {"id": each.platform, "name": each.platform, "parent_id": request.parent},
                "spec": {"presets": [], "gpu_count_quota_type": each.quota},
                "status": {"allowed_for_preemptibles": each.spot},
            },
        )
        resources = {
            "vcpu_count": each.vcpus,
            "memory_gibibytes": each.memory_gib,
            "gpu_count": each.gpus,
        }
        clustering = {"allow_gpu_clustering": True} if each.clustering and each.fabrics.get(region) else {}
        row["spec"]["presets"].append({"name": each.name, "resources": resources, **clustering})
    return page(request, list(rows.values()))


# -- what there is of each type


def capacity(request: Request, preset: Preset, place: str, *, spot: bool) -> int | None:
    """How many machines a place (a fabric, a region) has, those that run included; None: no limit."""
    knobs = request.account.knobs_now()
    known = knobs.spot_capacity if spot else knobs.capacity
    keys = (f"{preset.type}@{place}", preset.type, f"*@{place}")
    return next((known[key] for key in keys if key in known), None)


def running(request: Request, preset: Preset, place: str, *, spot: bool) -> int:
    return sum(
        1
        for _, doc in request.store.each("instance")
        if doc["_type"] == preset.type and doc["_place"] == place and doc["_spot"] == spot and doc["_holds"]
    )


def free(request: Request, preset: Preset, place: str, *, spot: bool) -> int | None:
    total = capacity(request, preset, place, spot=spot)
    return None if total is None else max(0, total - running(request, preset, place, spot=spot))


@method("capacity.v1.ResourceAdviceService", "List")
def advice(request: Request) -> Doc:
    """For each type on each fabric, and in each region without one, what may be had now."""
    if request.parent != request.account.identity(TENANT):
        raise not_found(request.parent, service="capacity")
    rows: list[Doc] = []
    for preset in presets().values():
        for region in preset.regions:
            for fabric in preset.fabrics.get(region) or ("",):
                rows.append(_row(request, preset, region, fabric))
    return page(request, rows)


def _row(request: Request, preset: Preset, region: str, fabric: str) -> Doc:
    place = fabric or region

    def availability(*, spot: bool) -> Doc:
        there = free(request, preset, place, spot=spot)
        count = PLENTY if there is None else there
        level = "AVAILABILITY_LEVEL_HIGH" if count >= PLENTY else "AVAILABILITY_LEVEL_LOW"
        if count == 0:
            level = "AVAILABILITY_LEVEL_LIMIT_REACHED"
        return {
            "data_state": "DATA_STATE_FRESH",
            "available": count,
            "limit": count,
            "availability_level": level,
            "effective_at": stamp(request.account.now()),
        }

    resources = {
        "vcpu_count": preset.vcpus,
        "memory_gibibytes": preset.memory_gib,
        "gpu_count": preset.gpus,
    }
    details = {"platform": preset.platform, "preset": {"name": preset.name, "resources": resources}}
    status = {"on_demand": availability(spot=False)}
    if preset.spot:
        status["preemptible"] = availability(spot=True)
    return {
        "metadata": {"id": f"advice-{place}-{preset.type}", "parent_id": request.account.identity(TENANT)},
        "spec": {"region": region, "fabric": fabric, "compute_instance": details},
        "status": status,
    }


# -- quotas


def gpus_in_use(request: Request, quota: str, region: str) -> int:
    known = {each.type: each for each in presets().values() if each.quota == quota}
    return sum(
        known[doc["_type"]].gpus for _, doc in request.store.each("instance", region) if doc["_type"] in known
    )


def quota_error(request: Request, preset: Preset, region: str) -> NebiusError | None:
    """Why the quota has no room for one more machine."""
    limit = request.account.knobs_now().quotas.get(preset.quota) if preset.quota else None
    if limit is None:
        return None
    requested = gpus_in_use(request, preset.quota, region) + preset.gpus
    return over_quota(preset.quota, int(limit), requested) if requested > limit else None


@method("quotas.v1.QuotaAllowanceService", "GetByName")
def quota_by_name(request: Request) -> Doc:
    name, region = str(request.body.get("name") or ""), str(request.body.get("region") or "")
    if name not in {each.quota for each in presets().values()} - {""}:
        raise not_found(name, service="quotas")
    limit = request.account.knobs_now().quotas.get(name, 10_000.0)
    return {
        "metadata": {"id": f"quota-{region}-{name}", "name": name, "parent_id": request.parent},
        "spec": {"limit": str(int(limit)), "region": region},
        "status": {
            "state": "STATE_ACTIVE",
            "usage": str(gpus_in_use(request, name, region)),
            "unit": "gpu",
            "service": "compute",
        },
    }
