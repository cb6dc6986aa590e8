"""Networks, subnets, security groups and their rules. Source: proto nebius.vpc.v1."""

from __future__ import annotations

import ipaddress

from orch.rehearsal.nebius.api.errors import bad_request, bad_state
from orch.rehearsal.nebius.api.methods import (
    Request,
    existing,
    make,
    method,
    named,
    of_parent,
    operation,
    page,
    put,
)
from orch.rehearsal.store import Doc

KINDS = {
    "NetworkService": ("network", "vpcnetwork"),
    "SubnetService": ("subnet", "vpcsubnet"),
    "SecurityGroupService": ("security-group", "vpcsecuritygroup"),
    "SecurityRuleService": ("security-rule", "vpcsecurityrule"),
}
DEFAULT_POOL = "10.0.0.0/13"
SUBNET_PREFIX = 16
MOST_CIDRS = 8
MOST_PRIORITY = 1000


def _kind(request: Request) -> str:
    return KINDS[request.service.rpartition(".")[2]][0]


def _get(request: Request) -> Doc:
    return existing(request, _kind(request), str(request.body.get("id") or ""))


def _get_by_name(request: Request) -> Doc:
    return named(request, _kind(request))


def _list(request: Request) -> Doc:
    return page(request, list(of_parent(request, _kind(request))))


for _service in KINDS:
    method(f"vpc.v1.{_service}", "Get")(_get)
    method(f"vpc.v1.{_service}", "GetByName")(_get_by_name)
    method(f"vpc.v1.{_service}", "List")(_list)


def _update(request: Request) -> Doc:
    """Labels alone: the rest of what orch makes here is immutable."""
    metadata = request.body.get("metadata") or {}
    doc = existing(request, _kind(request), str(metadata.get("id") or ""))
    changed = request.body.get("spec") or {}
    for name, value in changed.items():
        if doc["spec"].get(name) != value:
            raise bad_request(f"spec.{name}", "immutable", service="vpc")
    version = int(doc["metadata"]["resource_version"]) + 1
    doc["metadata"] |= {"labels": metadata.get("labels") or {}, "resource_version": str(version)}
    put(request, _kind(request), doc)
    return operation(request, doc["metadata"]["id"])


for _service in KINDS:
    method(f"vpc.v1.{_service}", "Update")(_update)


# -- networks and subnets


@method("vpc.v1.NetworkService", "Create")
def create_network(request: Request) -> Doc:
    network_id, _ = make(request, "network", "vpcnetwork", {"state": "READY"})
    return operation(request, network_id)


@method("vpc.v1.NetworkService", "Delete")
def delete_network(request: Request) -> Doc:
    network = _get(request)
    _unused(request, network["metadata"]["id"], ("subnet", "security-group"), "network_id")
    request.store.remove(network["metadata"]["id"])
    return operation(request, network["metadata"]["id"])


@method("vpc.v1.SubnetService", "Create")
def create_subnet(request: Request) -> Doc:
    """Its range is one of the network's pool, which nobody else has."""
    network_id = str((request.body.get("spec") or {}).get("network_id") or "")
    existing(request, "network", network_id)
    status = {"state": "READY"}
    subnet_id, doc = make(request, "subnet", "vpcsubnet", status)
    doc["status"]["ipv4_private_cidrs"] = [free_range(request, network_id, subnet_id)]
    put(request, "subnet", doc)
    return operation(request, subnet_id)


def free_range(request: Request, network_id: str, owner: str) -> str:
    pool = ipaddress.ip_network(DEFAULT_POOL)
    return next(
        str(each)
        for each in pool.subnets(new_prefix=SUBNET_PREFIX)
        if request.store.take(f"ranges {network_id}", str(each), owner)
    )


@method("vpc.v1.SubnetService", "ListByNetwork")
def subnets_of(request: Request) -> Doc:
    network = str(request.body.get("network_id") or "")
    rows = [doc for _, doc in request.store.each("subnet") if doc["spec"]["network_id"] == network]
    return page(request, rows)


@method("vpc.v1.SubnetService", "Delete")
def delete_subnet(request: Request) -> Doc:
    subnet = _get(request)
    subnet_id = subnet["metadata"]["id"]
    for instance_id, instance in request.store.each("instance"):
        if any(nic["subnet_id"] == subnet_id for nic in instance["spec"]["network_interfaces"]):
            raise bad_state(subnet_id, f"subnet is used by {instance_id}", service="vpc")
    request.store.remove(subnet_id)
    return operation(request, subnet_id)


def _unused(request: Request, resource_id: str, kinds: tuple[str, ...], field: str) -> None:
    for kind in kinds:
        for other, doc in request.store.each(kind):
            if doc["spec"].get(field) == resource_id:
                raise bad_state(resource_id, f"it is used by {other}", service="vpc")


# -- security groups


@method("vpc.v1.SecurityGroupService", "Create")
def create_group(request: Request) -> Doc:
    existing(request, "network", str((request.body.get("spec") or {}).get("network_id") or ""))
    group_id, _ = make(request, "security-group", "vpcsecuritygroup", {"state": "READY"})
    return operation(request, group_id)


@method("vpc.v1.SecurityGroupService", "Delete")
def delete_group(request: Request) -> Doc:
    """Not while it has rules, or a machine is in it. Source: skypilot provision/nebius/utils.py."""
    group = _get(request)
    group_id = group["metadata"]["id"]
    if any(doc["metadata"]["parent_id"] == group_id for _, doc in request.store.each("security-rule")):
        raise bad_state(group_id, "security group has rules", service="vpc")
    for instance_id, instance in request.store.each("instance"):
        groups = [
            each["id"]
            for nic in instance["spec"]["network_interfaces"]
            for each in nic.get("security_groups") or ()
        ]
        if group_id in groups:
            raise bad_state(group_id, f"security group is used by {instance_id}", service="vpc")
    request.store.remove(group_id)
    return operation(request, group_id)


@method("vpc.v1.SecurityRuleService", "Create")
def create_rule(request: Request) -> Doc:
    """Its parent is a group. All of it is immutable."""
    spec = request.body.get("spec") or {}
    group_id = request.parent
    existing(request, "security-group", group_id)
    sides = [name for name in ("ingress", "egress") if name in spec]
    if len(sides) != 1:
        raise bad_request("spec", "exactly one of ingress and egress", service="vpc")
    side = spec[sides[0]]
    for field in ("source_cidrs", "destination_cidrs", "destination_ports"):
        if len(side.get(field) or ()) > MOST_CIDRS:
            raise bad_request(f"spec.{sides[0]}.{field}", f"at most {MOST_CIDRS}", service="vpc")
    if not 0 <= int(spec.get("priority") or 0) <= MOST_PRIORITY:
        raise bad_request("spec.priority", f"0 to {MOST_PRIORITY}", service="vpc")
    rule_id, _ = _make_below(request, "security-rule", "vpcsecurityrule")
    return operation(request, rule_id)


def _make_below(request: Request, kind: str, prefix: str) -> tuple[str, Doc]:
    """A resource whose parent is no project."""
    from orch.rehearsal.nebius.api.methods import checked_name, new_id, stamp

    name, resource_id = checked_name(request, kind), new_id(request, prefix)
    metadata = {
        **request.body["metadata"],
        "id": resource_id,
        "resource_version": "1",
        "created_at": stamp(request.account.now()),
    }
    doc = {"metadata": metadata, "spec": request.body.get("spec") or {}, "status": {"state": "READY"}}
    request.store.put(resource_id, kind, "", doc, f"{request.parent}/{name}")
    return resource_id, doc


@method("vpc.v1.SecurityRuleService", "GetByName")
def rule_by_name(request: Request) -> Doc:
    from orch.rehearsal.nebius.api.errors import not_found

    found = request.store.find("security-rule", f"{request.parent}/{request.body.get('name')}")
    if found is None:
        raise not_found(str(request.body.get("name")), service="vpc")
    return existing(request, "security-rule", found)


@method("vpc.v1.SecurityRuleService", "Delete")
def delete_rule(request: Request) -> Doc:
    rule = _get(request)
    request.store.remove(rule["metadata"]["id"])
    return operation(request, rule["metadata"]["id"])
