"""Routers and their NAT gateways. Sources: rehearsal/README.md, "GCP: networks"."""

from __future__ import annotations

from orch.rehearsal.gcp.api.errors import GcpError, invalid, required
from orch.rehearsal.gcp.api.methods import API, NAME, Request, method
from orch.rehearsal.gcp.api.network.profiles import blocked, profile_of
from orch.rehearsal.gcp.api.quotas import need_project
from orch.rehearsal.store import Doc

MOST_PER_NETWORK = 5
"""Routers of a network in a region."""

FIELDS = ("description", "network", "bgp", "nats", "interfaces", "bgpPeers")
ALL = "ALL_SUBNETWORKS_ALL_IP_RANGES"


@method("routers.insert", "POST", "regions/{region}/routers")
def insert(request: Request) -> Doc:
    path, doc = request.new("router", "routers", "router", fields=FIELDS)
    if not doc.get("network"):
        raise required("resource.network")
    network_path = request.link("resource.network", doc["network"])
    network = request.thing("network", network_path)
    if profile_of(request, network) is not None:
        raise blocked("A Cloud Router", network["name"])
    there = [one for one, _ in request.store.referrers(network_path, "router") if f"/{request.scope}/" in one]
    if len(there) >= MOST_PER_NETWORK:
        raise GcpError(
            "quotaExceeded",
            f"Quota limit 'ROUTERS_PER_NETWORK_PER_REGION' exceeded. Limit: {MOST_PER_NETWORK}.",
        )
    doc["network"] = API + network_path
    _check_nats(doc.get("nats") or [])
    need_project(request, "ROUTERS", path, "router")
    request.store.refer(path, network_path, "router")
    return request.add(path, "router", doc)


def _check_nats(nats: list[Doc]) -> None:
    names = [nat.get("name") for nat in nats]
    for nat in nats:
        if not NAME.fullmatch(str(nat.get("name") or "")):
            raise invalid(
                "resource.nats[0].name", nat.get("name"), f"Must be a match of regex '{NAME.pattern}'"
            )
        if nat.get("natIpAllocateOption", "AUTO_ONLY") not in {"AUTO_ONLY", "MANUAL_ONLY"}:
            raise invalid(
                "resource.nats[0].natIpAllocateOption", nat["natIpAllocateOption"], "Unknown option."
            )
        if not nat.get("sourceSubnetworkIpRangesToNat"):
            raise required("resource.nats[0].sourceSubnetworkIpRangesToNat")
    if len(set(names)) != len(names):
        raise invalid("resource.nats", names[-1], "Names of NAT configurations must be distinct.")
    if sum(nat.get("sourceSubnetworkIpRangesToNat") == ALL for nat in nats) > 1:
        raise invalid(
            "resource.nats", ALL, "Only one NAT configuration of a network may cover all subnetworks."
        )


@method("routers.get", "GET", "regions/{region}/routers/{router}")
def get(request: Request) -> Doc:
    return request.thing("router", request.path("routers", request.words["router"]))


@method("routers.list", "GET", "regions/{region}/routers")
def list_routers(request: Request) -> Doc:
    return request.page([doc for _, doc in request.each("router", request.scope)], "router")


@method("routers.patch", "PATCH", "regions/{region}/routers/{router}")
def patch(request: Request) -> Doc:
    path = request.path("routers", request.words["router"])
    doc = request.thing("router", path)
    for key in ("description", "bgp", "nats", "interfaces", "bgpPeers"):
        if key in request.body:
            doc[key] = request.body[key]
    _check_nats(doc.get("nats") or [])
    return request.add(path, "router", doc)


@method("routers.delete", "DELETE", "regions/{region}/routers/{router}")
def delete(request: Request) -> Doc:
    path = request.path("routers", request.words["router"])
    doc = request.thing("router", path)
    request.store.remove(path)
    return doc
