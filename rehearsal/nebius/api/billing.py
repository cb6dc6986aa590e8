"""What machines would cost. Source: proto nebius.billing.v1, CalculatorService."""

from __future__ import annotations

from orch.rehearsal.nebius.api.errors import bad_request
from orch.rehearsal.nebius.api.instances import checked_preset
from orch.rehearsal.nebius.api.methods import Request, existing, method
from orch.rehearsal.nebius.data.tables import Preset
from orch.rehearsal.store import Doc

# US dollars an hour. Source: docs.nebius.com, "Billing changes in October 2025".
VCPU, GIB = 0.012, 0.0032
_REQUEST = "type.googleapis.com/nebius.compute.v1.CreateInstanceRequest"


@method("billing.v1.CalculatorService", "EstimateBatch")
def estimate_batch(request: Request) -> Doc:
    """The hourly cost of each machine, by the request that would make it."""
    rows = [_cost(request, spec.get("spec") or {}) for spec in request.body.get("resource_specs") or ()]
    if not rows:
        raise bad_request("resource_specs", "required", service="billing")
    return {"resource_costs": rows, "currency": "USD"}


def _cost(request: Request, made_by: Doc) -> Doc:
    if made_by.get("@type") != _REQUEST:
        raise bad_request("resource_specs.spec", "not supported", service="billing")
    spec, metadata = made_by.get("spec") or {}, made_by.get("metadata") or {}
    project = existing(request, "project", str(metadata.get("parent_id") or ""))
    preset = checked_preset(spec, str(project["spec"]["region"]))
    cost = price(preset, spot="preemptible" in spec)
    return {
        "metadata": {key: metadata[key] for key in ("parent_id", "name") if key in metadata},
        "aggregation_unit": {"unit": "hour", "unit_type": "UNIT_TYPE_TIME_BASED"},
        "general": {"total": {"cost": f"{cost:.6f}", "cost_rounded": f"{cost:.2f}"}},
    }


def price(preset: Preset, *, spot: bool) -> float:
    """Of a preemptible machine GPU, vCPUs and memory together are one price per GPU."""
    if spot:
        return preset.gpus * preset.spot_price
    return preset.gpus * preset.gpu_price + preset.vcpus * VCPU + preset.memory_gib * GIB
