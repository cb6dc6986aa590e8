"""Subnetworks and their addresses. Sources: rehearsal/README.md, "GCP: networks"."""

from __future__ import annotations

import ipaddress

from orch.rehearsal.gcp.api.errors import GcpError, in_use, invalid, not_found, required
from orch.rehearsal.gcp.api.methods import API, Request, fingerprint, method
from orch.rehearsal.gcp.api.network.profiles import blocked, profile_of
from orch.rehearsal.gcp.api.quotas import need_project
from orch.rehearsal.gcp.data.tables import regions, zones
from orch.rehearsal.store import Doc

LEAST_PREFIX = 29
"""The smallest range is a /29."""

RESERVED_FIRST, RESERVED_LAST = 2, 2
"""Addresses that Google reserves: the first two and the last two of a range."""

FIELDS = (
    "description",
    "network",
    "ipCidrRange",
    "privateIpGoogleAccess",
    "stackType",
    "ipv6AccessType",
    "purpose",
)


@method("subnetworks.insert", "POST", "regions/{region}/subnetworks")
def insert(request: Request) -> Doc:
    region = request.words["region"]
    if region not in regions():
        raise invalid("region", region, "Unknown region.")
    path, doc = request.new("subnetwork", "subnetworks", "subnetwork", fields=FIELDS)
    if not doc.get("network"):
        raise required("resource.network")
    network_path = request.link("resource.network", doc["network"])
    network = request.thing("network", network_path)
    zone_and_profile = profile_of(request, network)
    if zone_and_profile is not None:
        zone, profile = zone_and_profile
        if not profile.subnets:
            raise blocked("Creating a subnetwork", network["name"])
        if zones()[zone] != region:
            raise invalid("resource.region", region, f"The network profile of the network is in zone {zone}.")
    doc["network"] = API + network_path
    _check_range(request, doc, network_path, network)
    need_project(request, "SUBNETWORKS", path, "subnetwork")
    return add_subnet(request, path, doc)


def add_subnet(request: Request, path: str, doc: Doc) -> Doc:
    """Store a new subnetwork with the fields that the API adds."""
    doc = {"stackType": "IPV4_ONLY", "privateIpGoogleAccess": False, "purpose": "PRIVATE", **doc}
    if "selfLink" not in doc:
        doc = request.headed(path, "subnetwork", doc)
    if doc.get("ipCidrRange"):
        doc["gatewayAddress"] = str(ipaddress.ip_network(doc["ipCidrRange"])[1])
    if doc["stackType"] != "IPV4_ONLY":
        doc.setdefault("internalIpv6Prefix", f"fd20:0:0:{request.store.count('ula'):x}::/64")
    doc["fingerprint"] = fingerprint(doc)
    request.store.refer(path, doc["network"].removeprefix(API), "subnetwork")
    return request.add(path, "subnetwork", doc)


def _check_range(request: Request, doc: Doc, network_path: str, network: Doc) -> None:
    text = doc.get("ipCidrRange")
    stack = doc.get("stackType", "IPV4_ONLY")
    if stack not in {"IPV4_ONLY", "IPV4_IPV6", "IPV6_ONLY"}:
        raise invalid("resource.stackType", stack, "Unknown stack type.")
    if stack != "IPV4_ONLY" and not doc.get("ipv6AccessType"):
        raise required("resource.ipv6AccessType")
    if (
        stack != "IPV4_ONLY"
        and doc["ipv6AccessType"] == "INTERNAL"
        and not network.get("enableUlaInternalIpv6")
    ):
        raise invalid(
            "resource.ipv6AccessType",
            "INTERNAL",
            "The network must have a ULA internal IPv6 range.",
        )
    if stack == "IPV6_ONLY":
        return
    if not text:
        raise required("resource.ipCidrRange")
    try:
        wanted = ipaddress.IPv4Network(text)
    except ValueError:
        raise invalid("resource.ipCidrRange", text, "Must be a valid CIDR range.") from None
    if wanted.prefixlen > LEAST_PREFIX:
        raise invalid("resource.ipCidrRange", text, f"The prefix must be at most /{LEAST_PREFIX}.")
    for source, _ in request.store.referrers(network_path, "subnetwork"):
        other = request.store.get(source, "subnetwork") or {}
        if other.get("ipCidrRange") and wanted.overlaps(ipaddress.IPv4Network(other["ipCidrRange"])):
            region = source.split("/")[3]
            raise invalid(
                "resource.ipCidrRange",
                text,
                f"Invalid IPCidrRange: {text} conflicts with existing subnetwork '{other['name']}' in region "
                f"'{region}'.",
            )


def take_address(request: Request, subnet_path: str, owner: str, address: str | None = None) -> str | None:
    """Take the lowest free address of a subnetwork; None for one without an IPv4 range."""
    subnet = request.thing("subnetwork", subnet_path)
    text = subnet.get("ipCidrRange")
    if not text:
        return None
    addresses = ipaddress.IPv4Network(text)
    if address is not None:
        if ipaddress.IPv4Address(address) not in addresses:
            raise invalid(
                "resource.networkInterfaces[0].networkIP", address, "Not in the subnetwork's range."
            )
        if not request.store.take(subnet_path, address, owner):
            raise GcpError("IP_IN_USE_BY_ANOTHER_RESOURCE", f"IP '{address}' is already being used.")
        return address
    last = addresses.num_addresses - RESERVED_LAST
    start = RESERVED_FIRST + request.store.taken(subnet_path)
    for number in (*range(start, last), *range(RESERVED_FIRST, min(start, last))):
        if request.store.take(subnet_path, str(addresses[number]), owner):
            return str(addresses[number])
    raise GcpError(
        "IP_SPACE_EXHAUSTED_WITH_DETAILS",
        f"IP space of '{subnet_path}' is exhausted. Insufficient free IP addresses.",
    )


@method("subnetworks.get", "GET", "regions/{region}/subnetworks/{subnetwork}")
def get(request: Request) -> Doc:
    return request.thing("subnetwork", request.path("subnetworks", request.words["subnetwork"]))


@method("subnetworks.list", "GET", "regions/{region}/subnetworks")
def list_subnets(request: Request) -> Doc:
    if request.words["region"] not in regions():
        raise not_found(f"projects/{request.project}/regions/{request.words['region']}")
    rows = [doc for _, doc in request.each("subnetwork", request.scope)]
    return request.page(rows, "subnetwork")


@method("subnetworks.patch", "PATCH", "regions/{region}/subnetworks/{subnetwork}")
def patch(request: Request) -> Doc:
    path = request.path("subnetworks", request.words["subnetwork"])
    doc = request.thing("subnetwork", path)
    expected = request.body.get("fingerprint")
    if expected and expected != doc["fingerprint"]:
        raise GcpError("conditionNotMet", "Invalid fingerprint.")
    for key in ("privateIpGoogleAccess", "stackType", "ipv6AccessType"):
        if key in request.body:
            doc[key] = request.body[key]
    doc["fingerprint"] = fingerprint(doc)
    return request.add(path, "subnetwork", doc)


@method("subnetworks.delete", "DELETE", "regions/{region}/subnetworks/{subnetwork}")
def delete(request: Request) -> Doc:
    path = request.path("subnetworks", request.words["subnetwork"])
    doc = request.thing("subnetwork", path)
    users = request.store.referrers(path)
    if users:
        raise in_use("subnetwork", path, users[0][0])
    if doc.get("_own"):
        raise blocked("Deleting a subnetwork", doc["network"].rpartition("/")[2])
    request.store.remove(path)
    return doc
