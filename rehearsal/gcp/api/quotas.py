"""Quotas of a project. Sources: rehearsal/README.md, "GCP: quotas"."""

from __future__ import annotations

from collections.abc import Sequence

from orch.rehearsal.gcp.api.errors import quota_exceeded
from orch.rehearsal.gcp.api.methods import Request
from orch.rehearsal.gcp.data.tables import Type, quotas
from orch.rehearsal.store import Doc


def limit(request: Request, metric: str) -> float:
    given = request.cloud.knobs_now().quotas
    if metric in given:
        return given[metric]
    return next((table[metric] for table in quotas().values() if metric in table), float("inf"))


COUNTED = {
    "NETWORKS": "network",
    "FIREWALLS": "firewall",
    "ROUTERS": "router",
    "SUBNETWORKS": "subnetwork",
    "INSTANCE_TEMPLATES": "instance-template",
}
"""Metrics of a project that count resources of one kind."""

COUNTED_THERE = {
    "INSTANCE_GROUP_MANAGERS": "instance-group-manager",
    "RESOURCE_POLICIES": "resource-policy",
}
"""Metrics of a region that count resources of one kind."""


def need_project(request: Request, metric: str, path: str, kind: str) -> None:
    """Check the project's quota for one more resource of a kind. Raises QUOTA_EXCEEDED."""
    if used_by_project(request, metric) + 1 > limit(request, metric):
        raise quota_exceeded(metric, limit(request, metric), "global")


def used_by_project(request: Request, metric: str) -> int:
    if metric == "GPUS_ALL_REGIONS":
        return request.store.weight(f"gpus {request.project}", "gpus")
    kind = COUNTED.get(metric)
    return len(request.each(kind)) if kind else 0


def used_in_region(request: Request, metric: str, region: str) -> int:
    kind = COUNTED_THERE.get(metric)
    if kind is None:
        return request.store.weight(pool(request, region), metric)
    return sum(_in(path, region) for path, _ in request.each(kind))


def _in(path: str, region: str) -> bool:
    location = path.split("/")[3]
    return region in {location, location.rpartition("-")[0]}


def pool(request: Request, region: str) -> str:
    return f"quota {request.project} {region}"


def need_machines(request: Request, kind: Type, region: str, *, preemptible: bool, count: int = 1) -> None:
    """Check the quotas of a region for `count` machines. Raises QUOTA_EXCEEDED."""
    for metric, each in (*kind.metrics(preemptible=preemptible), ("INSTANCES", 1)):
        if used_in_region(request, metric, region) + each * count > limit(request, metric):
            raise quota_exceeded(metric, limit(request, metric), region)
    gpus = 0 if preemptible else kind.gpus * count
    if gpus and used_by_project(request, "GPUS_ALL_REGIONS") + gpus > limit(request, "GPUS_ALL_REGIONS"):
        raise quota_exceeded("GPUS_ALL_REGIONS", limit(request, "GPUS_ALL_REGIONS"), "global")


def charge(request: Request, path: str, kind: Type, region: str, *, preemptible: bool) -> None:
    """Count a machine against the quotas as long as it exists."""
    for metric, each in (*kind.metrics(preemptible=preemptible), ("INSTANCES", 1)):
        request.store.refer(path, pool(request, region), metric, each)
    if kind.gpus and not preemptible:
        request.store.refer(path, f"gpus {request.project}", "gpus", kind.gpus)


def rows(request: Request, metrics: Sequence[tuple[str, float]]) -> list[Doc]:
    """Quotas as the API reports them for a project or a region: metric and usage."""
    return [
        {"metric": metric, "limit": float(limit(request, metric)), "usage": float(usage)}
        for metric, usage in metrics
    ]
