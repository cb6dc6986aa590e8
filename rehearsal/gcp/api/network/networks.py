"""Networks and their profiles. Sources: rehearsal/README.md, "GCP: networks"."""

from __future__ import annotations

from orch.rehearsal.gcp.api.errors import in_use, invalid, not_found
from orch.rehearsal.gcp.api.methods import API, Request, method
from orch.rehearsal.gcp.api.network.profiles import profile_named, profile_of
from orch.rehearsal.gcp.api.network.subnets import add_subnet
from orch.rehearsal.gcp.api.quotas import need_project
from orch.rehearsal.gcp.data.tables import NetworkProfile, zones
from orch.rehearsal.store import Doc

LEAST_MTU, MOST_MTU, USUAL_MTU = 1300, 8896, 1460

FIELDS = (
    "description",
    "autoCreateSubnetworks",
    "mtu",
    "networkProfile",
    "enableUlaInternalIpv6",
    "internalIpv6Range",
    "routingConfig",
    "networkFirewallPolicyEnforcementOrder",
)


@method("networks.insert", "POST", "global/networks")
def insert(request: Request) -> Doc:
    path, doc = request.new("network", "networks", "network", fields=FIELDS)
    zone_and_profile: tuple[str, NetworkProfile] | None = None
    if doc.get("networkProfile"):
        link = request.link("resource.networkProfile", doc["networkProfile"])
        zone_and_profile = profile_named(request, link.rpartition("/")[2])
        if zone_and_profile is None or "/global/networkProfiles/" not in link:
            raise not_found(link)
        doc["networkProfile"] = API + link
        if doc.get("autoCreateSubnetworks"):
            raise invalid(
                "resource.autoCreateSubnetworks",
                True,
                "The network profile does not allow auto mode subnetworks.",
            )
    doc["mtu"] = _mtu(doc.get("mtu"), zone_and_profile[1] if zone_and_profile else None)
    if doc.get("autoCreateSubnetworks"):
        raise invalid(
            "resource.autoCreateSubnetworks", True, "Auto mode networks are not part of this simulation."
        )
    doc["autoCreateSubnetworks"] = False
    doc.setdefault("routingConfig", {"routingMode": "REGIONAL"})
    doc.setdefault("networkFirewallPolicyEnforcementOrder", "AFTER_CLASSIC_FIREWALL")
    doc["selfLinkWithId"] = f"{API}projects/{request.project}/global/networks/{doc['id']}"
    if doc.get("enableUlaInternalIpv6"):
        doc.setdefault("internalIpv6Range", _ula(request))
    need_project(request, "NETWORKS", path, "network")
    request.add(path, "network", doc)
    if zone_and_profile is not None and not zone_and_profile[1].subnets:
        _own_subnet(request, path, doc, zones()[zone_and_profile[0]])
    return doc


def _mtu(wanted: object, profile: NetworkProfile | None) -> int:
    if profile is not None:
        if wanted not in (None, 0, profile.mtu):
            raise invalid("resource.mtu", wanted, f"The network profile requires an MTU of {profile.mtu}.")
        return profile.mtu
    mtu = int(str(wanted or USUAL_MTU))
    if mtu < LEAST_MTU:
        raise invalid("resource.mtu", mtu, f"Must be greater than or equal to {LEAST_MTU}")
    if mtu > MOST_MTU:
        raise invalid("resource.mtu", mtu, f"Must be less than or equal to {MOST_MTU}")
    return mtu


def _ula(request: Request) -> str:
    number = request.store.count("ula")
    return f"fd20:{number >> 16:x}:{number & 0xFFFF:x}:0:0:0:0:0/48"


def _own_subnet(request: Request, path: str, network: Doc, region: str) -> None:
    """Create the subnetwork that a network of a metal profile has from the start."""
    name = f"default-subnet-1-{network['name']}"[:63].rstrip("-")
    where = f"projects/{request.project}/regions/{region}/subnetworks/{name}"
    doc: Doc = {"network": API + path, "stackType": "IPV6_ONLY", "ipv6AccessType": "INTERNAL", "_own": True}
    doc["internalIpv6Prefix"] = f"fd20:ffff:{request.store.count('ula'):x}::/64"
    add_subnet(request, where, doc)


@method("networks.get", "GET", "global/networks/{network}")
def get(request: Request) -> Doc:
    path = request.path("networks", request.words["network"])
    return {**request.thing("network", path), **_subnets(request, path)}


def _subnets(request: Request, path: str) -> Doc:
    paths = [source for source, _ in request.store.referrers(path, "subnetwork")]
    return {"subnetworks": [API + one for one in paths]} if paths else {}


@method("networks.list", "GET", "global/networks")
def list_networks(request: Request) -> Doc:
    rows = [{**doc, **_subnets(request, path)} for path, doc in request.each("network")]
    return request.page(rows, "network")


@method("networks.patch", "PATCH", "global/networks/{network}")
def patch(request: Request) -> Doc:
    path = request.path("networks", request.words["network"])
    doc = request.thing("network", path)
    if request.body.get("networkProfile", doc.get("networkProfile")) != doc.get("networkProfile"):
        raise invalid("resource.networkProfile", request.body["networkProfile"], "The field is immutable.")
    if "mtu" in request.body:
        zone_and_profile = profile_of(request, doc)
        doc["mtu"] = _mtu(request.body["mtu"], zone_and_profile[1] if zone_and_profile else None)
    for key in ("routingConfig", "networkFirewallPolicyEnforcementOrder", "enableUlaInternalIpv6"):
        if key in request.body:
            doc[key] = request.body[key]
    return request.add(path, "network", doc)


@method("networks.delete", "DELETE", "global/networks/{network}")
def delete(request: Request) -> Doc:
    path = request.path("networks", request.words["network"])
    doc = request.thing("network", path)
    for source, _ in request.store.referrers(path):
        own = request.store.get(source, "subnetwork")
        users = request.store.referrers(source)
        if own is not None and own.get("_own") and not users:
            continue
        by = users[0][0] if own is not None and own.get("_own") else source
        raise in_use("network", path, by, late=True)
    for source, _ in request.store.referrers(path):
        request.store.remove(source)
    request.store.remove(path)
    return doc


# -- profiles ----------------------------------------------------------------------------------------------
