"""Managed instance groups. Sources: rehearsal/README.md, "GCP: groups"."""

from __future__ import annotations

from orch.rehearsal.gcp.api.compute.group_members import (
    MOST_MEMBERS,
    end,
    group_of,
    grow,
    members,
    shrink,
)
from orch.rehearsal.gcp.api.compute.instance_templates import template_named
from orch.rehearsal.gcp.api.errors import invalid, not_found, quota_exceeded, required
from orch.rehearsal.gcp.api.methods import API, NAME, Request, fingerprint, method
from orch.rehearsal.gcp.api.quotas import limit, used_in_region
from orch.rehearsal.gcp.data.tables import zones
from orch.rehearsal.store import Doc

MOST_BASE = 58
"""Letters of a base name: a member's name adds `-` and four characters."""

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


@method("instanceGroupManagers.get", "GET", "zones/{zone}/instanceGroupManagers/{instanceGroupManager}")
def get(request: Request) -> Doc:
    return current(request, *group_of(request))


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
    path, _ = group_of(request)
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
    path, doc = group_of(request)
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
    path, doc = group_of(request)
    if request.params.get("size") is None:
        raise required("size")
    return request.add(
        path, "instance-group-manager", _resized(request, path, doc, int(request.params["size"]))
    )


def _resized(request: Request, path: str, doc: Doc, size: int) -> Doc:
    doc = {**doc, "targetSize": _checked_size(size)}
    shrink(request, path, size)
    grow(request, path, doc)
    return doc


@method(
    "instanceGroupManagers.deleteInstances",
    "POST",
    "zones/{zone}/instanceGroupManagers/{instanceGroupManager}/deleteInstances",
)
def delete_instances(request: Request) -> Doc:
    path, doc = group_of(request)
    for link in request.body.get("instances") or ():
        member = request.link("instances[0]", link)
        if member not in members(request, path):
            raise invalid("instances[0]", link, "Not a member of the group.")
        end(request, member)
        doc["targetSize"] -= 1
    return request.add(path, "instance-group-manager", doc)


@method("instanceGroupManagers.delete", "DELETE", "zones/{zone}/instanceGroupManagers/{instanceGroupManager}")
def delete(request: Request) -> Doc:
    path, doc = group_of(request)
    for source, _ in request.store.referrers(path, "resize"):
        request.store.remove(source)
    for member in members(request, path):
        end(request, member)
    request.store.remove(path)
    return doc
