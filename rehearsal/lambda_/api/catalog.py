"""What there is: types with the regions that have capacity, regions, images.

Source: Lambda Cloud API 1.10, listInstanceTypes, listRegions, listImages.
"""

from __future__ import annotations

import hashlib

from orch.rehearsal.http_service import Answer, Request
from orch.rehearsal.lambda_.api.routes import region_of, route, told
from orch.rehearsal.lambda_.data.tables import ARCHITECTURES, IMAGES, REGIONS, Kind, kinds
from orch.rehearsal.store import Doc


def free(request: Request, kind: Kind, region: str) -> bool:
    """Whether an instance of a type can be had in a region."""
    if region not in kind.regions:
        return False
    known = request.account.knobs_now().capacity
    keys = (f"{kind.name}@{region}", kind.name, f"*@{region}")
    limit = next((known[key] for key in keys if key in known), None)
    running = sum(
        1
        for doc in request.each("instance")
        if (doc["_type"], doc["_region"], doc["_holds"]) == (kind.name, region, True)
    )
    return limit is None or running < limit


def type_document(kind: Kind) -> Doc:
    return {
        "name": kind.name,
        "description": f"{kind.gpus}x {kind.description}" if kind.gpus else "General",
        "gpu_description": kind.description or "N/A",
        "price_cents_per_hour": kind.cents,
        "specs": {
            "vcpus": kind.vcpus,
            "memory_gib": kind.memory_gib,
            "storage_gib": kind.storage_gib,
            "gpus": kind.gpus,
        },
    }


def images_there() -> list[Doc]:
    return [
        {
            "id": hashlib.sha256(f"{family} {arch} {region}".encode()).hexdigest()[:32],
            "name": family,
            "family": family,
            "version": version,
            "architecture": arch,
            "region": region_of(region),
            "created_time": made,
            "updated_time": made,
        }
        for family, version, made in IMAGES
        for arch in ARCHITECTURES
        for region in REGIONS
    ]


@route("GET", "/instance-types", "listInstanceTypes")
def instance_types(request: Request) -> Answer:
    return told(
        {
            kind.name: {
                "instance_type": type_document(kind),
                "regions_with_capacity_available": [
                    region_of(region) for region in kind.regions if free(request, kind, region)
                ],
            }
            for kind in kinds().values()
        }
    )


@route("GET", "/regions", "listRegions")
def regions(request: Request) -> Answer:
    return told([region_of(name) for name in REGIONS])


@route("GET", "/images", "listImages")
def images(request: Request) -> Answer:
    return told(images_there())
