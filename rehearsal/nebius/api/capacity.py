"""What there is of each type on each fabric, and quotas.

Source: proto nebius.capacity.v1, nebius.quotas.v1.
"""

from __future__ import annotations

from orch.rehearsal.nebius.api.errors import NebiusError, not_found, over_quota
from orch.rehearsal.nebius.api.methods import Request, method, page, stamp
from orch.rehearsal.nebius.data.tables import TENANT, Preset, presets
from orch.rehearsal.store import Doc

PLENTY = 100
"""Machines that there are of a type whose capacity nobody set."""


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
    if request.parent != TENANT:
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
        "metadata": {"id": f"advice-{place}-{preset.type}", "parent_id": TENANT},
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
