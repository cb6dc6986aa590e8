"""Groups of instances, and requests for capacity that comes all at once."""

from __future__ import annotations

from collections.abc import Mapping

from orch.rehearsal.gcp.resources.calls import Api, ApiFailure, CallFailed
from orch.rehearsal.gcp.resources.instance_templates import unique
from orch.rehearsal.gcp.resources.kinds import Generated, Kind, Props, given, last, taken
from orch.rehearsal.store import Doc

_POLICY = ("type", "minimalAction", "mostDisruptiveAllowedAction", "replacementMethod", "minReadySec")


class InstanceGroupManager:
    def create(self, api: Api, inputs: Props) -> str:
        where = f"projects/{api.project}/zones/{api.zone}/instanceGroupManagers"
        try:
            operation = api.send("POST", where, _body(inputs))
        except ApiFailure as failure:
            raise CallFailed(f"Error creating InstanceGroupManager: {failure}") from failure
        api.wait("Creating InstanceGroupManager", operation)
        return f"{where}/{inputs['name']}"

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = api.get(resource_id)
        if doc is None:
            return None
        versions = doc.get("versions") or [{"instanceTemplate": doc.get("instanceTemplate", "")}]
        lifecycle = doc.get("instanceLifecyclePolicy") or {}
        found = {
            **taken(
                doc,
                "name",
                "description",
                "baseInstanceName",
                "targetSize",
                "creationTimestamp",
                "fingerprint",
                "instanceGroup",
                "selfLink",
                "listManagedInstancesResults",
                "standbyPolicy",
                "targetStoppedSize",
                "targetSuspendedSize",
            ),
            "instanceGroupManagerId": int(doc.get("id") or 0),
            "zone": last(doc.get("zone")),
            "versions": [taken(each, "name", "instanceTemplate") for each in versions],
            "updatePolicy": _policy_shown(doc.get("updatePolicy") or {}),
            "statuses": [doc["status"]] if doc.get("status") else [],
        }
        if lifecycle:
            found["instanceLifecyclePolicy"] = dict(lifecycle)
        if doc.get("resourcePolicies"):
            found["resourcePolicies"] = dict(doc["resourcePolicies"])
        return found

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        words = {
            "versions": "versions",
            "updatePolicy": "updatePolicy",
            "instanceLifecyclePolicy": "instanceLifecyclePolicy",
            "resourcePolicies": "resourcePolicies",
        }
        body = _body(inputs)
        patch = {words[name]: body.get(words[name]) for name in sorted(changed & set(words))}
        try:
            if patch:
                api.done("Updating managed group instances", "PATCH", resource_id, patch)
            if "targetSize" in changed:
                size = int(inputs.get("targetSize") or 0)
                api.done("Updating InstanceGroupManager", "POST", f"{resource_id}/resize", size=size)
        except ApiFailure as failure:
            raise CallFailed(f"Error updating managed group instances: {failure}") from failure

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed(
            lambda failure: f"Error deleting instance group manager: {failure}",
            "Deleting InstanceGroupManager",
            resource_id,
        )


def _body(inputs: Props) -> Doc:
    found = given(
        inputs,
        "name",
        "description",
        "baseInstanceName",
        "instanceLifecyclePolicy",
        "resourcePolicies",
        "listManagedInstancesResults",
    )
    found["targetSize"] = int(inputs.get("targetSize") or 0)
    found["versions"] = [
        {**given(each, "name", "targetSize"), "instanceTemplate": unique(str(each["instanceTemplate"]))}
        for each in inputs["versions"]
    ]
    policy = inputs.get("updatePolicy")
    if policy:
        found["updatePolicy"] = given(policy, *_POLICY)
        for ours, theirs in (("maxSurge", "maxSurge"), ("maxUnavailable", "maxUnavailable")):
            if policy.get(f"{ours}Fixed") is not None:
                found["updatePolicy"][theirs] = {"fixed": policy[f"{ours}Fixed"]}
            elif policy.get(f"{ours}Percent") is not None:
                found["updatePolicy"][theirs] = {"percent": policy[f"{ours}Percent"]}
    return found


def _policy_shown(doc: Doc) -> Props:
    found = taken(doc, *_POLICY)
    for name in ("maxSurge", "maxUnavailable"):
        amount = doc.get(name) or {}
        found |= taken(amount, **{f"{name}Fixed": "fixed", f"{name}Percent": "percent"})
    return found


class ResizeRequest(Generated):
    """The provider waits until the request is taken, not until there is capacity for it."""

    title = "ResizeRequest"
    where = (
        "projects/{project}/zones/{zone}/instanceGroupManagers/{instanceGroupManager}/resizeRequests/{name}"
    )

    def path(self, api: Api, inputs: Props) -> str:
        return super().path(
            api, {**inputs, "instanceGroupManager": last(f"/{inputs['instanceGroupManager']}")}
        )

    def body(self, api: Api, inputs: Props) -> Doc:
        return given(inputs, "name", "description", "resizeBy", "requestedRunDuration")

    def shown(self, doc: Doc, state: Props) -> Props:
        found = taken(doc, "name", "description", "resizeBy", "creationTimestamp", "state")
        run = doc.get("requestedRunDuration")
        if run:
            found["requestedRunDuration"] = {"seconds": str(run["seconds"]), **taken(run, "nanos")}
        found["statuses"] = [doc["status"]] if doc.get("status") else []
        return found

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        """One that was waiting when it was last looked at is cancelled first."""
        if state.get("state") == "ACCEPTED":
            try:
                api.done("Cancelling the resize request", "POST", f"{resource_id}/cancel")
            except ApiFailure as failure:
                if failure.status == 404:
                    return
                raise CallFailed(self._told(resource_id, failure)) from failure
        api.removed(lambda why: self._told(resource_id, why), "Cancelling the resize request", resource_id)


TYPES: Mapping[str, Kind] = {
    "gcp:compute/instanceGroupManager:InstanceGroupManager": InstanceGroupManager(),
    "gcp:compute/resizeRequest:ResizeRequest": ResizeRequest(),
}
