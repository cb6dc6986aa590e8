"""A managed instance group and its members: which there are, the request for the next one, how one comes and
goes. Sources: rehearsal/README.md, "GCP: groups".
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from orch.rehearsal.gcp.api.compute import endings, instances
from orch.rehearsal.gcp.api.compute.instance_templates import template_named
from orch.rehearsal.gcp.api.compute.resource_policies import full, most
from orch.rehearsal.gcp.api.errors import GcpError, invalid
from orch.rehearsal.gcp.api.methods import API, Request, fingerprint
from orch.rehearsal.store import Doc

MOST_MEMBERS = 1000
"""VMs of a zonal group; 2,000 on request: https://cloud.google.com/compute/docs/instance-groups"""

LETTERS = "0123456789bcdfghjklmnpqrstvwxz"


def group_of(request: Request) -> tuple[str, Doc]:
    """The path of the group that a request names, and the group."""
    path = request.path("instanceGroupManagers", request.words["instanceGroupManager"])
    return path, request.thing("instance-group-manager", path)


def members(request: Request, path: str) -> list[str]:
    return [source for source, _ in request.store.referrers(path, "member")]


def instance_request(request: Request, path: str, doc: Doc) -> instances.InstanceRequest:
    """The request for the group's next member, from its template."""
    zone_request = Request(request.cloud, {"project": path.split("/")[1], "zone": path.split("/")[3]}, {}, {})
    _, template = template_named(zone_request, "instanceTemplate", doc["instanceTemplate"])
    body = {**template["properties"], "name": _name(request, path, doc)}
    return instances.checked(zone_request, body)


def _name(request: Request, path: str, doc: Doc) -> str:
    while True:
        count = request.store.count(f"member {path}")
        digest = hashlib.sha256(f"{request.cloud.seed} {path} {count}".encode()).digest()
        name = doc["baseInstanceName"] + "-" + "".join(LETTERS[one % len(LETTERS)] for one in digest[:4])
        if request.store.get(f"{path.partition('/instanceGroupManagers/')[0]}/instances/{name}") is None:
            return name


def check_policy(request: Request, path: str, doc: Doc, one: instances.InstanceRequest, count: int) -> None:
    """Check that the group's workload policy allows `count` more machines. Raises the operation's error."""
    for policy in request.store.targets(path, "workload"):
        policy_doc = request.thing("resource-policy", policy)
        if one.policies:
            raise invalid("resource.resourcePolicies", policy, "The template has a placement policy already.")
        topology = policy_doc["workloadPolicy"].get("acceleratorTopology")
        if topology and not one.kind.domain:
            raise invalid(
                "resource.resourcePolicies",
                policy,
                f"Machine type {one.kind.name} has no accelerator topology.",
            )
        if not one.kind.workload:
            raise invalid(
                "resource.resourcePolicies", policy, f"Not supported by machine type {one.kind.name}."
            )
        if len(members(request, path)) + count > most(policy_doc):
            raise full(policy_doc, one.kind)


def create(request: Request, path: str, one: instances.InstanceRequest, run_s: int | None = None) -> str:
    """Create one member; returns its path. `run_s`: its run duration in seconds, when a resize request sets
    one."""
    zone_request = Request(request.cloud, {"project": path.split("/")[1], "zone": path.split("/")[3]}, {}, {})
    placed = {"resourcePolicies": [API + policy for policy in request.store.targets(path, "workload")]}
    more = placed if placed["resourcePolicies"] else {}
    items = [*(one.doc["metadata"].get("items") or ()), {"key": "created-by", "value": path}]
    metadata = {**one.doc["metadata"], "items": items, "fingerprint": fingerprint(items)}
    if run_s is not None:
        one = replace(one, scheduling=replace(one.scheduling, run_s=run_s))
    instance = instances.make(zone_request, one, _group=path, metadata=metadata, **more)
    member = instance["selfLink"].removeprefix(API)
    request.store.refer(member, path, "member")
    request.cloud.note("born", member)
    return member


def grow(request: Request, path: str, doc: Doc) -> None:
    """Create members up to the target size, as far as capacity allows; the group waits for the others."""
    while len(members(request, path)) < doc["targetSize"] - pending_resizes(request, path):
        try:
            with request.store.attempt():
                one = instance_request(request, path, doc)
                check_policy(request, path, doc, one, 1)
                create(request, path, one)
        except GcpError as error:
            if not error.in_operation:
                raise
            return


def pending_resizes(request: Request, path: str) -> int:
    """The members that resize requests wait for; they count as part of the target size."""
    resizes = (request.store.get(source) or {} for source, _ in request.store.referrers(path, "resize"))
    return sum(int(one["resizeBy"]) for one in resizes if one.get("state") == "ACCEPTED")


def shrink(request: Request, path: str, size: int) -> None:
    for member in members(request, path)[size:]:
        end(request, member)


def end(request: Request, member: str) -> None:
    doc = request.thing("instance", member)
    endings.end(request, member, {**doc, "_group": None})
