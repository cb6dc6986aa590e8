"""VPC networks, subnets, firewall rules, and partitions of InfiniBand networks."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from orch.rehearsal.crusoe.api.bodies import CreateNetwork, CreatePartition, CreateRule, CreateSubnet, checked
from orch.rehearsal.crusoe.api.errors import bad_request, in_use, not_found
from orch.rehearsal.crusoe.api.routes import existing, looked_at, made, operation, route
from orch.rehearsal.crusoe.data.tables import ib_networks, locations
from orch.rehearsal.http_service import Answer, Request
from orch.rehearsal.store import Doc

# Kind -> its path, below networking/.
KINDS: Mapping[str, str] = {
    "network": "vpc-networks",
    "subnet": "vpc-subnets",
    "firewall-rule": "vpc-firewall-rules",
    "ib-partition": "ib-partitions",
}


def _read_routes(kind: str, path: str) -> None:
    base = f"/projects/{{p}}/networking/{path}"

    @route("GET", base, f"list {kind}")
    def rows(request: Request) -> Answer:
        return Answer(200, {"items": list(request.each(kind))})

    if kind != "ib-partition":

        @route("GET", f"{base}/operations/{{id}}", f"operation {kind}")
        def of_operation(request: Request) -> Answer:
            return looked_at(request)

    @route("GET", f"{base}/{{id}}", f"get {kind}")
    def get(request: Request) -> Answer:
        return Answer(200, existing(request, kind))


for _kind, _path in KINDS.items():
    _read_routes(_kind, _path)


def _cidr(text: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise bad_request(f"cidr: {error}") from None


def _delete(request: Request, kind: str, used_by: str | None, field: str) -> Answer:
    doc = existing(request, kind)
    if used_by is not None and any(each[field] == doc["id"] for each in request.each(used_by)):
        raise in_use(kind)
    request.store.remove(doc["id"])
    return operation(request, doc["id"])


@route("POST", "/projects/{p}/networking/vpc-networks", "create network")
def create_network(request: Request) -> Answer:
    body = checked(CreateNetwork, request.body)
    _cidr(body.cidr)
    doc = made(request, "network", body.model_dump())
    return operation(request, doc["id"], result=doc)


@route("DELETE", "/projects/{p}/networking/vpc-networks/{id}", "delete network")
def delete_network(request: Request) -> Answer:
    if any(each["vpc_network_id"] == request.id for each in request.each("firewall-rule")):
        raise in_use("network")
    return _delete(request, "network", "subnet", "vpc_network_id")


@route("POST", "/projects/{p}/networking/vpc-subnets", "create subnet")
def create_subnet(request: Request) -> Answer:
    body = checked(CreateSubnet, request.body)
    network = existing(request, "network", body.vpc_network_id)
    if body.location not in locations():
        raise bad_request(f"location {body.location} is not known")
    if not _cidr(body.cidr).subnet_of(_cidr(network["cidr"])):
        raise bad_request("cidr: not within the network's")
    doc = made(request, "subnet", body.model_dump())
    return operation(request, doc["id"], result=doc)


@route("DELETE", "/projects/{p}/networking/vpc-subnets/{id}", "delete subnet")
def delete_subnet(request: Request) -> Answer:
    return _delete(request, "subnet", "instance", "_subnet")


@route("POST", "/projects/{p}/networking/vpc-firewall-rules", "create firewall-rule")
def create_rule(request: Request) -> Answer:
    body = checked(CreateRule, request.body)
    existing(request, "network", body.vpc_network_id)
    for each in (*body.sources, *body.destinations):
        if bool(each.cidr) == bool(each.resource_id):
            raise bad_request("exactly one of cidr and resource_id")
        if each.cidr:
            _cidr(each.cidr if "/" in each.cidr else f"{each.cidr}/32")
        elif not any(request.store.get(each.resource_id, kind) for kind in ("network", "subnet", "instance")):
            raise not_found(f"resource {each.resource_id}")
    if not set(body.protocols) <= {"tcp", "udp", "icmp"}:
        raise bad_request("protocols: tcp, udp, icmp")
    doc = made(request, "firewall-rule", body.model_dump())
    return operation(request, doc["id"], result=doc)


@route("DELETE", "/projects/{p}/networking/vpc-firewall-rules/{id}", "delete firewall-rule")
def delete_rule(request: Request) -> Answer:
    return _delete(request, "firewall-rule", None, "")


@route("POST", "/projects/{p}/networking/ib-partitions", "create ib-partition")
def create_partition(request: Request) -> Answer:
    """At once: there is no operation. A network without free slices takes partitions too."""
    body = checked(CreatePartition, request.body)
    if body.ib_network_id not in ib_networks():
        raise not_found("ib network")
    doc: Doc = made(request, "ib-partition", body.model_dump())
    return Answer(200, doc)


@route("DELETE", "/projects/{p}/networking/ib-partitions/{id}", "delete ib-partition")
def delete_partition(request: Request) -> Answer:
    doc = existing(request, "ib-partition")
    if any(each["_partition"] == doc["id"] for each in request.each("instance")):
        raise in_use("partition")
    request.store.remove(doc["id"])
    return Answer(204)
