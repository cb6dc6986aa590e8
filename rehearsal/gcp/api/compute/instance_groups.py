"""Managed instance groups. Sources: rehearsal/README.md, "GCP: groups"."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from orch.rehearsal.gcp.api.compute import endings, instances
from orch.rehearsal.gcp.api.compute.instance_templates import template_named
from orch.rehearsal.gcp.api.compute.resource_policies import full, most
from orch.rehearsal.gcp.api.errors import GcpError, invalid, not_found, quota_exceeded, required
from orch.rehearsal.gcp.api.methods import API, NAME, Request, fingerprint, method
from orch.rehearsal.gcp.api.quotas import limit, used_in_region
from orch.rehearsal.gcp.data.tables import zones
from orch.rehearsal.store import Doc

MOST_MEMBERS = 1000
"""VMs of a zonal group; 2,000 on request: https://cloud.google.com/compute/docs/instance-groups"""

MOST_BASE = 58
"""Letters of a base name: a member's name adds `-` and four characters."""

LETTERS = "0123456789bcdfghjklmnpqrstvwxz"
FIELDS = (
    "description",
    "baseInstanceName",
    "instanceTemplate",
    "versions",
    "targetSize",
    "updatePolicy",
    "instanceLifecyclePolicy",
    "resourcePolicies",
    "autoHealingPolicies",
    "listManagedInstancesResults",
)


@method("instanceGroupManagers.insert", "POST", "zones/{zone}/instanceGroupManagers")
def insert(request: Request) -> Doc:
    zone = request.words["zone"]
    if zone not in zones():
        raise not_found(f"projects/{request.project}/zones/{zone}")
    path, doc = request.new(
        "instance-group-manager", "instanceGroupManagers", "instanceGroupManager", fields=FIELDS
    )
    if used_in_region(request, "INSTANCE_GROUP_MANAGERS", request.region) >= limit(
        request, "INSTANCE_GROUP_MANAGERS"
    ):
        raise quota_exceeded(
            "INSTANCE_GROUP_MANAGERS", limit(request, "INSTANCE_GROUP_MANAGERS"), request.region
        )
    base = str(doc.get("baseInstanceName") or doc["name"][:54])
    if not NAME.fullmatch(base) or len(base) > MOST_BASE:
        raise invalid("resource.baseInstanceName", base, f"Must be a name of at most {MOST_BASE} characters.")
    doc["baseInstanceName"] = base
    if doc.get("targetSize") is None:
        raise required("resource.targetSize")
    doc = _with_templates(request, path, doc)
    doc = _with_policy(request, path, doc)
    doc["targetSize"] = _checked_size(int(doc["targetSize"]))
    doc.setdefault("updatePolicy", {"type": "OPPORTUNISTIC", "minimalAction": "REPLACE"})
    doc["instanceLifecyclePolicy"] = {
        "defaultActionOnFailure": "REPAIR",
        "forceUpdateOnRepair": "NO",
        **(doc.get("instanceLifecyclePolicy") or {}),
    }
    doc["instanceGroup"] = f"{API}projects/{request.project}/zones/{zone}/instanceGroups/{doc['name']}"
    doc["fingerprint"] = fingerprint(doc)
    request.add(path, "instance-group-manager", doc)
    grow(request, path, doc)
    return doc


def _checked_size(size: int) -> int:
    if not 0 <= size <= MOST_MEMBERS:
        raise invalid("resource.targetSize", size, f"Must be between 0 and {MOST_MEMBERS}.")
    return size


def _with_templates(request: Request, path: str, doc: Doc) -> Doc:
    versions = doc.get("versions") or [{"instanceTemplate": doc.get("instanceTemplate")}]
    if not versions[0].get("instanceTemplate"):
        raise required("resource.versions[0].instanceTemplate")
    request.store.unrefer(path, "template")
    found = []
    for version in versions:
        template, _ = template_named(
            request, "resource.versions[0].instanceTemplate", version["instanceTemplate"]
        )
        request.store.refer(path, template, "template")
        found.append({**version, "instanceTemplate": _unique(str(version["instanceTemplate"]), template)})
    return {**doc, "versions": found, "instanceTemplate": found[0]["instanceTemplate"]}


def _unique(resource: str, template: str) -> str:
    unique = resource.partition("?uniqueId=")[2]
    return API + template + (f"?uniqueId={unique}" if unique else "")


def _with_policy(request: Request, path: str, doc: Doc) -> Doc:
    policy_link = (doc.get("resourcePolicies") or {}).get("workloadPolicy")
    request.store.unrefer(path, "workload")
    if not policy_link:
        return doc
    field = "resource.resourcePolicies.workloadPolicy"
    policy = request.link(field, policy_link)
    policy_doc = request.thing("resource-policy", policy)
    if policy_doc.get("workloadPolicy") is None:
        raise invalid(field, policy, "Must be a workload policy.")
    if policy.split("/")[3] != request.region:
        raise invalid(field, policy, "The resource policy is not in the group's region.")
    before = (request.store.get(path) or {}).get("resourcePolicies")
    if members(request, path) and before != {"workloadPolicy": API + policy}:
        raise invalid(field, policy, "The workload policy cannot be changed while the group has instances.")
    request.store.refer(path, policy, "workload")
    return {**doc, "resourcePolicies": {"workloadPolicy": API + policy}}


# -- members -----------------------------------------------------------------------------------------------


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
    request.note("born", member)
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


def _shrink(request: Request, path: str, size: int) -> None:
    for member in members(request, path)[size:]:
        _end(request, member)


def _end(request: Request, member: str) -> None:
    doc = request.thing("instance", member)
    endings.end(request, member, {**doc, "_group": None})


# -- the rest of the collection ----------------------------------------------------------------------------


def current(request: Request, path: str, doc: Doc) -> Doc:
    there = len(members(request, path))
    stable = there == doc["targetSize"]
    creating = max(0, doc["targetSize"] - there)
    return {
        **doc,
        "status": {"isStable": stable, "versionTarget": {"isReached": True}},
        "currentActions": {
            "none": there,
            "creating": creating,
            "creatingWithoutRetries": 0,
            "deleting": 0,
            "recreating": 0,
            "refreshing": 0,
            "restarting": 0,
            "verifying": 0,
            "abandoning": 0,
        },
    }


def _group(request: Request) -> tuple[str, Doc]:
    path = request.path("instanceGroupManagers", request.words["instanceGroupManager"])
    return path, request.thing("instance-group-manager", path)


@method("instanceGroupManagers.get", "GET", "zones/{zone}/instanceGroupManagers/{instanceGroupManager}")
def get(request: Request) -> Doc:
    return current(request, *_group(request))


@method("instanceGroupManagers.list", "GET", "zones/{zone}/instanceGroupManagers")
def list_groups(request: Request) -> Doc:
    rows = [
        current(request, path, doc) for path, doc in request.each("instance-group-manager", request.scope)
    ]
    return request.page(rows, "instanceGroupManager")


@method(
    "instanceGroupManagers.listManagedInstances",
    "POST",
    "zones/{zone}/instanceGroupManagers/{instanceGroupManager}/listManagedInstances",
    mutates=False,
)
def list_members(request: Request) -> Doc:
    path, _ = _group(request)
    rows = [
        {
            "instance": API + member,
            "name": member.rpartition("/")[2],
            "instanceStatus": "RUNNING",
            "currentAction": "NONE",
        }
        for member in members(request, path)
    ]
    return {"managedInstances": rows}


@method("instanceGroupManagers.patch", "PATCH", "zones/{zone}/instanceGroupManagers/{instanceGroupManager}")
def patch(request: Request) -> Doc:
    path, doc = _group(request)
    body = request.body
    for key in ("updatePolicy", "instanceLifecyclePolicy", "description", "autoHealingPolicies"):
        if key in body:
            doc[key] = {**doc.get(key, {}), **body[key]} if isinstance(body[key], dict) else body[key]
    if "versions" in body or "instanceTemplate" in body:
        changes = {key: body[key] for key in ("versions", "instanceTemplate") if key in body}
        bare = {key: value for key, value in doc.items() if key not in {"versions", "instanceTemplate"}}
        doc = _with_templates(request, path, {**bare, **changes})
    if "resourcePolicies" in body:
        doc = _with_policy(request, path, {**doc, "resourcePolicies": body["resourcePolicies"]})
    if "targetSize" in body:
        doc = _resized(request, path, doc, int(body["targetSize"]))
    doc["fingerprint"] = fingerprint(doc)
    return request.add(path, "instance-group-manager", doc)


@method(
    "instanceGroupManagers.resize", "POST", "zones/{zone}/instanceGroupManagers/{instanceGroupManager}/resize"
)
def resize(request: Request) -> Doc:
    path, doc = _group(request)
    if request.params.get("size") is None:
        raise required("size")
    return request.add(
        path, "instance-group-manager", _resized(request, path, doc, int(request.params["size"]))
    )


def _resized(request: Request, path: str, doc: Doc, size: int) -> Doc:
    doc = {**doc, "targetSize": _checked_size(size)}
    _shrink(request, path, size)
    grow(request, path, doc)
    return doc


@method(
    "instanceGroupManagers.deleteInstances",
    "POST",
    "zones/{zone}/instanceGroupManagers/{instanceGroupManager}/deleteInstances",
)
def delete_instances(request: Request) -> Doc:
    path, doc = _group(request)
    for link in request.body.get("instances") or ():
        member = request.link("instances[0]", link)
        if member not in members(request, path):
            raise invalid("instances[0]", link, "Not a member of the group.")
        _end(request, member)
        doc["targetSize"] -= 1
    return request.add(path, "instance-group-manager", doc)


@method("instanceGroupManagers.delete", "DELETE", "zones/{zone}/instanceGroupManagers/{instanceGroupManager}")
def delete(request: Request) -> Doc:
    path, doc = _group(request)
    for source, _ in request.store.referrers(path, "resize"):
        request.store.remove(source)
    for member in members(request, path):
        _end(request, member)
    request.store.remove(path)
    return doc
