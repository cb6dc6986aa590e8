"""Groups of instances, and requests for capacity that comes all at once."""

from __future__ import annotations

from collections.abc import Mapping

from orch.rehearsal.gcp.resources.calls import Api, ApiFailure, CallFailed
from orch.rehearsal.gcp.resources.instance_templates import unique
from orch.rehearsal.gcp.resources.kinds import Generated, Kind, Props, body_fields, last, output_fields
from orch.rehearsal.store import Doc

_POLICY = ("type", "minimalAction", "mostDisruptiveAllowedAction", "replacementMethod", "minReadySec")


class InstanceGroupManager:
    def create(self, api: Api, inputs: Props) -> str:
        collection = f"projects/{api.project}/zones/{api.zone}/instanceGroupManagers"
        try:
            operation = api.send("POST", collection, _body(inputs))
        except ApiFailure as failure:
            raise CallFailed(f"Error creating InstanceGroupManager: {failure}") from failure
        api.wait("Creating InstanceGroupManager", operation)
        return f"{collection}/{inputs['name']}"

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = api.get(resource_id)
        if doc is None:
            return None
        versions = doc.get("versions") or [{"instanceTemplate": doc.get("instanceTemplate", "")}]
        lifecycle = doc.get("instanceLifecyclePolicy") or {}
        outputs = {
            **output_fields(
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
            "versions": [output_fields(each, "name", "instanceTemplate") for each in versions],
            "updatePolicy": _policy_outputs(doc.get("updatePolicy") or {}),
            "statuses": [doc["status"]] if doc.get("status") else [],
        }
        if lifecycle:
            outputs["instanceLifecyclePolicy"] = dict(lifecycle)
        if doc.get("resourcePolicies"):
            outputs["resourcePolicies"] = dict(doc["resourcePolicies"])
        return outputs

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
                api.perform("Updating managed group instances", "PATCH", resource_id, patch)
            if "targetSize" in changed:
                size = int(inputs.get("targetSize") or 0)
                api.perform("Updating InstanceGroupManager", "POST", f"{resource_id}/resize", size=size)
        except ApiFailure as failure:
            raise CallFailed(f"Error updating managed group instances: {failure}") from failure

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed(
            lambda failure: f"Error deleting instance group manager: {failure}",
            "Deleting InstanceGroupManager",
            resource_id,
        )


def _body(inputs: Props) -> Doc:
    body = body_fields(
        inputs,
        "name",
        "description",
        "baseInstanceName",
        "instanceLifecyclePolicy",
        "resourcePolicies",
        "listManagedInstancesResults",
    )
    body["targetSize"] = int(inputs.get("targetSize") or 0)
    body["versions"] = [
        {**body_fields(each, "name", "targetSize"), "instanceTemplate": unique(str(each["instanceTemplate"]))}
        for each in inputs["versions"]
    ]
    policy = inputs.get("updatePolicy")
    if policy:
        body["updatePolicy"] = body_fields(policy, *_POLICY)
        for pulumi_name, api_name in (("maxSurge", "maxSurge"), ("maxUnavailable", "maxUnavailable")):
            if policy.get(f"{pulumi_name}Fixed") is not None:
                body["updatePolicy"][api_name] = {"fixed": policy[f"{pulumi_name}Fixed"]}
            elif policy.get(f"{pulumi_name}Percent") is not None:
                body["updatePolicy"][api_name] = {"percent": policy[f"{pulumi_name}Percent"]}
    return body


def _policy_outputs(doc: Doc) -> Props:
    outputs = output_fields(doc, *_POLICY)
    for name in ("maxSurge", "maxUnavailable"):
        amount = doc.get(name) or {}
        outputs |= output_fields(amount, **{f"{name}Fixed": "fixed", f"{name}Percent": "percent"})
    return outputs


class ResizeRequest(Generated):
    """The provider waits until the request is taken, not until there is capacity for it."""

    title = "ResizeRequest"
    path_template = (
        "projects/{project}/zones/{zone}/instanceGroupManagers/{instanceGroupManager}/resizeRequests/{name}"
    )

    def path(self, api: Api, inputs: Props) -> str:
        return super().path(
            api, {**inputs, "instanceGroupManager": last(f"/{inputs['instanceGroupManager']}")}
        )

    def body(self, api: Api, inputs: Props) -> Doc:
        return body_fields(inputs, "name", "description", "resizeBy", "requestedRunDuration")

    def outputs(self, doc: Doc, state: Props) -> Props:
        outputs = output_fields(doc, "name", "description", "resizeBy", "creationTimestamp", "state")
        run = doc.get("requestedRunDuration")
        if run:
            outputs["requestedRunDuration"] = {"seconds": str(run["seconds"]), **output_fields(run, "nanos")}
        outputs["statuses"] = [doc["status"]] if doc.get("status") else []
        return outputs

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        """One that was waiting when it was last looked at is cancelled first."""
        if state.get("state") == "ACCEPTED":
            try:
                api.perform("Cancelling the resize request", "POST", f"{resource_id}/cancel")
            except ApiFailure as failure:
                if failure.status == 404:
                    return
                raise CallFailed(self._error_text(resource_id, failure)) from failure
        api.removed(
            lambda why: self._error_text(resource_id, why), "Cancelling the resize request", resource_id
        )


TYPES: Mapping[str, Kind] = {
    "gcp:compute/instanceGroupManager:InstanceGroupManager": InstanceGroupManager(),
    "gcp:compute/resizeRequest:ResizeRequest": ResizeRequest(),
}
