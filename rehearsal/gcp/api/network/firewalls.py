"""Firewall rules of networks. Sources: rehearsal/README.md, "GCP: networks"."""

from __future__ import annotations

import ipaddress

from orch.rehearsal.gcp.api.errors import GcpError, invalid, required
from orch.rehearsal.gcp.api.methods import API, NAME, Request, method
from orch.rehearsal.gcp.api.network.profiles import blocked, profile_of
from orch.rehearsal.gcp.api.quotas import need_project
from orch.rehearsal.store import Doc

PROTOCOLS = {"tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all"}
WITH_PORTS = {"tcp", "udp", "sctp"}
MOST_RANGES, MOST_SOURCE_TAGS, MOST_TARGET_TAGS = 5000, 30, 70

FIELDS = (
    "description",
    "network",
    "priority",
    "direction",
    "sourceRanges",
    "destinationRanges",
    "sourceTags",
    "targetTags",
    "allowed",
    "denied",
    "disabled",
    "logConfig",
)


@method("firewalls.insert", "POST", "global/firewalls")
def insert(request: Request) -> Doc:
    path, doc = request.new("firewall", "firewalls", "firewall", fields=FIELDS)
    if not doc.get("network"):
        raise required("resource.network")
    network_path = request.link("resource.network", doc["network"])
    network = request.thing("network", network_path)
    if profile_of(request, network) is not None:
        raise blocked("A VPC firewall rule", network["name"])
    doc = {"priority": 1000, "direction": "INGRESS", "disabled": False, **doc, "network": API + network_path}
    doc = _checked(doc)
    need_project(request, "FIREWALLS", path, "firewall")
    request.store.refer(path, network_path, "firewall")
    return request.add(path, "firewall", doc)


def _checked(doc: Doc) -> Doc:
    rules = [*(doc.get("allowed") or ()), *(doc.get("denied") or ())]
    if not rules or (doc.get("allowed") and doc.get("denied")):
        raise GcpError("invalid", "Exactly one of allowed or denied must be specified.")
    for rule in rules:
        protocol = str(rule.get("IPProtocol", "")).lower()
        if protocol not in PROTOCOLS and not (protocol.isdigit() and int(protocol) < 256):
            raise invalid("resource.allowed[0].IPProtocol", protocol, "Unknown protocol.")
        if rule.get("ports") and protocol not in WITH_PORTS:
            raise invalid(
                "resource.allowed[0].ports", rule["ports"][0], "Ports are not allowed for the protocol."
            )
        for ports in rule.get("ports") or ():
            low, _, high = str(ports).partition("-")
            if (
                not low.isdigit()
                or not (high or low).isdigit()
                or not 0 <= int(low) <= int(high or low) < 65536
            ):
                raise invalid("resource.allowed[0].ports[0]", ports, "Must be a port or a range of ports.")
    for range_ in doc.get("sourceRanges") or ():
        try:
            ipaddress.ip_network(range_)
        except ValueError:
            raise invalid("resource.sourceRanges[0]", range_, "Must be a valid CIDR range.") from None
    for field, most in (
        ("sourceRanges", MOST_RANGES),
        ("sourceTags", MOST_SOURCE_TAGS),
        ("targetTags", MOST_TARGET_TAGS),
    ):
        if len(doc.get(field) or ()) > most:
            raise invalid(f"resource.{field}", len(doc[field]), f"At most {most} are allowed.")
        if field.endswith("Tags"):
            for tag in doc.get(field) or ():
                if not NAME.fullmatch(tag):
                    raise invalid(f"resource.{field}[0]", tag, f"Must be a match of regex '{NAME.pattern}'")
    if doc["direction"] == "INGRESS" and not doc.get("sourceRanges") and not doc.get("sourceTags"):
        doc["sourceRanges"] = ["0.0.0.0/0"]
    return doc


@method("firewalls.get", "GET", "global/firewalls/{firewall}")
def get(request: Request) -> Doc:
    return request.thing("firewall", request.path("firewalls", request.words["firewall"]))


@method("firewalls.list", "GET", "global/firewalls")
def list_firewalls(request: Request) -> Doc:
    return request.page([doc for _, doc in request.each("firewall")], "firewall")


@method("firewalls.patch", "PATCH", "global/firewalls/{firewall}")
def patch(request: Request) -> Doc:
    path = request.path("firewalls", request.words["firewall"])
    doc = request.thing("firewall", path)
    changes = {key: request.body[key] for key in FIELDS if key in request.body and key != "network"}
    return request.add(path, "firewall", _checked({**doc, **changes}))


@method("firewalls.delete", "DELETE", "global/firewalls/{firewall}")
def delete(request: Request) -> Doc:
    path = request.path("firewalls", request.words["firewall"])
    doc = request.thing("firewall", path)
    request.store.remove(path)
    return doc
