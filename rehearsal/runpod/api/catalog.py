"""The catalogue: GPUs with prices and stock, data centers.

Source: runpod/docs api-reference-v2/openapi.json, /v2/catalog. `product` has no default: availability
without it is a 400.
"""

from __future__ import annotations

from orch.rehearsal.http_service import Answer, Request
from orch.rehearsal.runpod.api.errors import RunpodError
from orch.rehearsal.runpod.api.pods import free_pods
from orch.rehearsal.runpod.api.routes import route
from orch.rehearsal.runpod.data.tables import REGIONS, Gpu, data_centers, gpus
from orch.rehearsal.store import Doc

PRODUCTS = ("POD", "CLUSTER", "SERVERLESS")
LEVELS = ("NONE", "LOW", "MEDIUM", "HIGH")


@route("GET", "/v2/catalog/gpus", "listGpuTypes")
def list_gpus(request: Request) -> Answer:
    with_stock = request.query.get("include") == "AVAILABILITY"
    products = tuple(filter(None, request.query.get("product", "").split(",")))
    if with_stock and not products:
        raise RunpodError(400, "product is required with include=AVAILABILITY")
    if set(products) - set(PRODUCTS):
        raise RunpodError(
            422, "Request validation failed.", errors=[f"$.product: one of {', '.join(PRODUCTS)}"]
        )
    if products and not with_stock:
        raise RunpodError(400, "product is valid only with include=AVAILABILITY")
    rows = [{**_row(each), **(_stock(request, each) if with_stock else {})} for each in gpus().values()]
    return Answer(200, {"gpus": rows})


def _row(gpu: Gpu) -> Doc:
    return {
        "id": gpu.id,
        "name": gpu.name,
        "pool": None,
        "manufacturer": "NVIDIA",
        "memory": gpu.memory,
        "secure": True,
        "community": True,
        "price": {"secure": gpu.secure, "community": gpu.community},
        "maxCount": {"secure": gpu.max_count, "community": gpu.max_count},
    }


def _stock(request: Request, gpu: Gpu) -> Doc:
    """The stock of GPUs, which promises no cluster: that of `product=CLUSTER` is high for GPUs that no
    cluster has, too."""
    levels = {center: level(free_pods(request, gpu, center)) for center in gpu.data_centers}
    best = max(levels.values(), key=LEVELS.index)
    if best == "NONE":
        return {"availability": best}
    rows = [{"id": each, "name": each, "availability": found} for each, found in levels.items()]
    versions = [{"version": "12.8", "available": True}]
    return {"availability": best, "dataCenters": rows, "cudaVersions": versions}


def level(free: int | None) -> str:
    if free is None:
        return "HIGH"
    return LEVELS[min(3, (free + 1) // 2)]


@route("GET", "/v2/catalog/datacenters", "listDataCenters")
def list_centers(request: Request) -> Answer:
    rows = [
        {
            "id": each,
            "name": each,
            "region": REGIONS[each.partition("-")[0]],
            "globalNetwork": True,
            "networkVolumeTypes": ["STANDARD"],
            "compliance": [],
        }
        for each in data_centers()
    ]
    return Answer(200, {"dataCenters": rows})
