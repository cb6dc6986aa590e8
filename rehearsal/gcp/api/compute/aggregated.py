"""Lists of what a project has in all zones or regions. Source: Compute Engine API, `aggregatedList`."""

from __future__ import annotations

from orch.rehearsal.gcp.api.compute.instances import current
from orch.rehearsal.gcp.api.methods import Request, method, public
from orch.rehearsal.store import Doc

COLLECTIONS = {
    "disks": "disk",
    "instanceGroupManagers": "instance-group-manager",
    "instances": "instance",
    "resourcePolicies": "resource-policy",
    "routers": "router",
    "subnetworks": "subnetwork",
}


def _register(collection: str, kind: str) -> None:
    @method(f"{collection}.aggregatedList", "GET", f"aggregated/{collection}")
    def aggregated(request: Request) -> Doc:
        items: dict[str, Doc] = {}
        for path, doc in request.each(kind):
            row = current(request, doc) if kind == "instance" else doc
            scope = "/".join(path.split("/")[2:4])
            items.setdefault(scope, {collection: []})[collection].append(public(row))
        api_kind = collection[0].upper() + collection[1:]
        return {
            "kind": f"compute#{api_kind}AggregatedList",
            "id": f"projects/{request.project}/aggregated/{collection}",
            "items": items,
        }


for _collection, _kind in COLLECTIONS.items():
    _register(_collection, _kind)
