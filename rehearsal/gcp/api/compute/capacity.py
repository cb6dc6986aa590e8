"""Capacity of a machine type in a zone. Sources: rehearsal/README.md, "GCP: capacity"."""

from __future__ import annotations

from orch.rehearsal.gcp.api.compute.offerings import offered
from orch.rehearsal.gcp.api.errors import GcpError
from orch.rehearsal.gcp.api.methods import Request
from orch.rehearsal.gcp.data.tables import Type, regions, zones
from orch.rehearsal.store import Doc

STANDARD, SPOT = "standard", "spot"


def capacity_left(request: Request, kind: Type, zone: str, *, spot: bool = False) -> int | None:
    """The number of machines of a type that a zone can still start; None without a limit in the account."""
    knobs = request.cloud.knobs_now()
    table = knobs.spot_capacity if spot else knobs.capacity
    keys = (f"{kind.name}@{zone}", f"*@{zone}", kind.name)
    limit = next((table[key] for key in keys if key in table), None)
    role = SPOT if spot else STANDARD
    return None if limit is None else max(0, limit - request.store.weight(pool(kind.name, zone), role))


def pool(kind: str, zone: str) -> str:
    return f"pool {kind}@{zone}"


def occupy(request: Request, path: str, kind: Type, zone: str, *, spot: bool = False, count: int = 1) -> None:
    request.store.refer(path, pool(kind.name, zone), SPOT if spot else STANDARD, count)


def exhausted(request: Request, kind: Type, zone: str, *, spot: bool = False) -> GcpError:
    """The error of a zone without enough capacity. It has details for types with GPUs."""
    zone_path = f"projects/{request.project}/zones/{zone}"
    others = [
        other
        for other in regions()[zones()[zone]]
        if other != zone
        and offered(request, kind, other)
        and capacity_left(request, kind, other, spot=spot) != 0
    ]
    accelerators = f" with {kind.gpus} {kind.gpu} accelerator(s)" if kind.gpu else ""
    advice = (
        f"Consider trying your request in the {', '.join(others)} zone(s), which currently has capacity to "
        "accommodate your request. "
        if others
        else ""
    )
    details: list[Doc] = [
        {
            "help": {
                "links": [
                    {
                        "description": "Troubleshooting documentation",
                        "url": "https://cloud.google.com/compute/docs/resource-error",
                    }
                ]
            }
        },
        {
            "localizedMessage": {
                "locale": "en-US",
                "message": f"A {kind.name} VM instance{accelerators} is currently unavailable in the {zone} "
                f"zone. {advice}Alternatively, you can try your request again with a different VM "
                "hardware configuration or at a later time.",
            }
        },
        {
            "errorInfo": {
                "domain": "compute.googleapis.com",
                "reason": "resource_availability",
                "metadatas": {
                    "vmType": kind.name,
                    "zone": zone,
                    "attachment": f"{kind.gpu}:{kind.gpus}" if kind.gpu else "",
                    "zonesAvailable": ",".join(others),
                },
            }
        },
    ]
    text = f"The zone '{zone_path}' does not have enough resources available to fulfill the request.  "
    if kind.gpus:
        code = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
        return GcpError(code, f"{text}'(resource type:compute)'.", details=details)
    return GcpError(
        "ZONE_RESOURCE_POOL_EXHAUSTED", f"{text}Try a different zone, or try again later.", details=details
    )
