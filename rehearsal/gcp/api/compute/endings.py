"""How instances end: deleted, stopped by a call or by their own operating system, taken back from spot.

Sources: rehearsal/README.md, "GCP: instances".
"""

from __future__ import annotations

from orch.rehearsal.gcp.api.compute import disks
from orch.rehearsal.gcp.api.compute.capacity import SPOT, STANDARD
from orch.rehearsal.gcp.api.methods import Request, method, operation, stamp
from orch.rehearsal.store import Doc

GUEST_TERMINATE = "compute.instances.guestTerminate"
PREEMPTED = "compute.instances.preempted"
SYSTEM = "system"
"""Who is told as the user of an operation that nobody asked for."""


def end(request: Request, path: str, doc: Doc) -> None:
    """Delete an instance and release what it holds."""
    disks.detach(request, path, doc["disks"])
    request.store.remove(path)
    request.cloud.note("dead", path)
    group = doc.get("_group")
    if group:
        _leave_group(request, group)


@method("instances.stop", "POST", "zones/{zone}/instances/{instance}/stop")
def stop(request: Request) -> Doc:
    path = request.path("instances", request.words["instance"])
    request.cloud.note("dead", path)
    return _stopped(request, path, request.thing("instance", path))


def shut_down(request: Request, path: str) -> None:
    """The operating system of an instance powers it off: it is stopped, and an operation tells who did it."""
    doc = request.thing("instance", path)
    if not doc.get("_stopped"):
        stopped = _stopped(request, path, doc)
        operation(request, GUEST_TERMINATE, path, thing=stopped, user=SYSTEM)


def take_back(request: Request, path: str) -> None:
    """Compute Engine takes a spot instance back: it is stopped, or deleted, as its scheduling says."""
    doc = request.thing("instance", path)
    operation(request, PREEMPTED, path, thing=doc, user=SYSTEM)
    if doc["scheduling"].get("instanceTerminationAction") == "DELETE":
        end(request, path, doc)
    else:
        request.cloud.note("dead", path)
        _stopped(request, path, doc)


def _stopped(request: Request, path: str, doc: Doc) -> Doc:
    """An instance that is stopped keeps its disks, and takes no capacity."""
    request.store.unrefer(path, SPOT)
    request.store.unrefer(path, STANDARD)
    stopped = {**doc, "_stopped": True, "lastStopTimestamp": stamp(request.cloud.now())}
    return request.add(path, "instance", stopped)


def _leave_group(request: Request, path: str) -> None:
    """Lower the target size of a deleted member's group, if the group's policy is not to recreate it."""
    doc = request.store.get(path, "instance-group-manager")
    if doc is not None and doc["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "DO_NOTHING":
        doc["targetSize"] = max(0, doc["targetSize"] - 1)
        request.add(path, "instance-group-manager", doc)
