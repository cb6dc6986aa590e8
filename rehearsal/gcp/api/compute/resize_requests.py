"""Resize requests: all members at once, or none yet. Sources: rehearsal/README.md, "GCP: groups"."""

from __future__ import annotations

from orch.rehearsal.gcp.api.compute import endings, group_members, instances
from orch.rehearsal.gcp.api.compute.scheduling import LEAST_RUN_S, MOST_FLEX_RUN_S
from orch.rehearsal.gcp.api.errors import GcpError, invalid, required
from orch.rehearsal.gcp.api.methods import API, Request, before_each, checked_name, method
from orch.rehearsal.store import Doc

PATH = "zones/{zone}/instanceGroupManagers/{instanceGroupManager}/resizeRequests"
WAITING = "waiting resizes"
"""Paths of the requests in state ACCEPTED."""


@method("instanceGroupManagerResizeRequests.insert", "POST", PATH)
def insert(request: Request) -> Doc:
    group, group_doc = group_members.group_of(request)
    name, body = checked_name(request.body), request.body
    path = f"{group}/resizeRequests/{name}"
    if request.store.get(path) is not None:
        raise GcpError("alreadyExists", f"The resource '{path}' already exists")
    count = int(body.get("resizeBy") or len(body.get("instances") or ()))
    if not count:
        raise required("resource.resizeBy")
    if not 1 <= count <= group_members.MOST_MEMBERS - group_doc["targetSize"]:
        raise invalid(
            "resource.resizeBy", count, f"A group has at most {group_members.MOST_MEMBERS} instances."
        )
    if group_doc["instanceLifecyclePolicy"]["defaultActionOnFailure"] != "DO_NOTHING":
        action = group_doc["instanceLifecyclePolicy"]["defaultActionOnFailure"]
        why = "Repairs must be turned off in a group with resize requests."
        raise invalid("instanceLifecyclePolicy.defaultActionOnFailure", action, why)
    one = group_members.instance_request(request, group, group_doc)
    seconds = _duration(body, one)
    _check_template(one)
    group_members.check_policy(request, group, group_doc, one, count)
    doc: Doc = {
        "description": body.get("description", ""),
        "resizeBy": count,
        "state": "ACCEPTED",
        "status": {},
    }
    if seconds is not None:
        doc["requestedRunDuration"] = {"seconds": str(seconds), "nanos": 0}
    doc = request.headed(path, "instanceGroupManagerResizeRequest", doc)
    request.add(path, "resize-request", doc)
    request.store.refer(path, group, "resize")
    request.store.put_meta(WAITING, [*(request.store.meta(WAITING) or []), path])
    group_doc["targetSize"] += count
    request.add(group, "instance-group-manager", group_doc)
    return serve(request, path, doc)


def _duration(body: Doc, one: instances.InstanceRequest) -> int | None:
    duration = body.get("requestedRunDuration")
    if not duration:
        if one.scheduling.reservations:
            return None
        raise required("resource.requestedRunDuration")
    seconds = int(duration.get("seconds") or 0)
    if not LEAST_RUN_S <= seconds <= MOST_FLEX_RUN_S:
        raise invalid("resource.requestedRunDuration", seconds, "Must be between 10 minutes and 7 days.")
    return seconds


def _check_template(one: instances.InstanceRequest) -> None:
    """Check what a resize request requires of its group's template. Raises the API's error."""
    field = "resource.instanceTemplate"
    if not one.kind.gpus:
        raise invalid(field, one.kind.name, "Resize requests need a machine type with GPUs.")
    if one.kind.domain:
        raise invalid(field, one.kind.name, f"Resize requests are not supported for {one.kind.name}.")
    if one.scheduling.spot:
        raise invalid(field, "SPOT", "Resize requests do not create Spot VMs.")
    if one.scheduling.doc["onHostMaintenance"] != "TERMINATE":
        raise invalid(field, "MIGRATE", "Instances must have onHostMaintenance TERMINATE.")
    if one.policies:
        raise invalid(field, one.policies[0], "The template must not have a placement policy.")


def serve(request: Request, path: str, doc: Doc) -> Doc:
    """Create all members of a request, or leave it waiting."""
    group = path.partition("/resizeRequests/")[0]
    group_doc = request.thing("instance-group-manager", group)
    count = int(doc["resizeBy"])
    run_s = int(doc["requestedRunDuration"]["seconds"]) if "requestedRunDuration" in doc else None
    try:
        with request.store.attempt():
            instances.find_capacity(request, group_members.instance_request(request, group, group_doc), count)
            for _ in range(count):
                group_members.create(
                    request, group, group_members.instance_request(request, group, group_doc), run_s
                )
    except GcpError as error:
        doc["status"] = {"lastAttempt": {"error": error.operation()["error"]}}
        return request.add(path, "resize-request", doc)
    _settle(request, path)
    doc |= {"state": "SUCCEEDED", "status": {}}
    return request.add(path, "resize-request", doc)


def _settle(request: Request, path: str) -> None:
    request.store.put_meta(WAITING, [one for one in request.store.meta(WAITING) or [] if one != path])


def retry(request: Request) -> None:
    """Serve waiting requests that have capacity now."""
    for path in request.store.meta(WAITING) or []:
        doc = request.store.get(path, "resize-request")
        if doc is None:
            _settle(request, path)
        else:
            serve(request, path, doc)


def _resize(request: Request) -> tuple[str, Doc]:
    path = f"{group_members.group_of(request)[0]}/resizeRequests/{request.words['resizeRequest']}"
    return path, request.thing("resize-request", path)


@method("instanceGroupManagerResizeRequests.get", "GET", f"{PATH}/{{resizeRequest}}")
def get(request: Request) -> Doc:
    return _resize(request)[1]


@method("instanceGroupManagerResizeRequests.list", "GET", PATH)
def list_requests(request: Request) -> Doc:
    group, _ = group_members.group_of(request)
    rows = [request.thing("resize-request", source) for source, _ in request.store.referrers(group, "resize")]
    return request.page(rows, "instanceGroupManagerResizeRequest")


@method("instanceGroupManagerResizeRequests.cancel", "POST", f"{PATH}/{{resizeRequest}}/cancel")
def cancel(request: Request) -> Doc:
    path, doc = _resize(request)
    if doc["state"] != "ACCEPTED":
        raise GcpError(
            "invalidUsage", f"Resize request '{path}' cannot be cancelled in state {doc['state']}."
        )
    group, group_doc = group_members.group_of(request)
    group_doc["targetSize"] -= int(doc["resizeBy"])
    request.add(group, "instance-group-manager", group_doc)
    _settle(request, path)
    return request.add(path, "resize-request", {**doc, "state": "CANCELLED"})


@method("instanceGroupManagerResizeRequests.delete", "DELETE", f"{PATH}/{{resizeRequest}}")
def delete(request: Request) -> Doc:
    path, doc = _resize(request)
    if doc["state"] == "ACCEPTED":
        raise GcpError("invalidUsage", f"Resize request '{path}' must be cancelled before it is deleted.")
    request.store.remove(path)
    return {**doc, "selfLink": API + path}


@before_each
def settle(request: Request) -> None:
    """Apply the passage of time: end instances whose run duration is over, and serve requests."""
    ends: dict[str, float] = request.store.meta("ends") or {}
    over = [path for path, at in ends.items() if request.cloud.now() >= at]
    if over:
        request.store.put_meta("ends", {path: at for path, at in ends.items() if path not in over})
        for path in over:
            doc = request.store.get(path, "instance")
            if doc is not None:
                endings.end(request, path, doc)
    retry(request)
