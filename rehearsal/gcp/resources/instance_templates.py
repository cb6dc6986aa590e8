"""`gcp:compute/instanceTemplate:InstanceTemplate`: made once, never changed."""

from __future__ import annotations

from collections.abc import Mapping

from orch.rehearsal.gcp.resources.calls import Api, ApiFailure, CallFailed
from orch.rehearsal.gcp.resources.kinds import Kind, Props, body_fields, last, output_fields
from orch.rehearsal.gcp.resources.shapes import machine, machine_outputs
from orch.rehearsal.store import Doc


class InstanceTemplate:
    def create(self, api: Api, inputs: Props) -> str:
        name = str(inputs["name"])
        try:
            operation = api.send("POST", f"projects/{api.project}/global/instanceTemplates", _body(inputs))
        except ApiFailure as failure:
            raise CallFailed(f"Error creating instance template: {failure}") from failure
        api.wait("Creating Instance Template", operation)
        return f"projects/{api.project}/global/instanceTemplates/{name}"

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = api.get(resource_id)
        if doc is None:
            return None
        properties: Doc = doc["properties"]
        return {
            **machine_outputs(properties, state),
            **output_fields(doc, "name", "description", "creationTimestamp", "selfLink"),
            "instanceDescription": properties.get("description", ""),
            "disks": [_disk_outputs(each) for each in properties.get("disks") or ()],
            "selfLinkUnique": f"{doc['selfLink']}?uniqueId={doc['id']}",
            "numericId": str(doc["id"]),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        """Nothing of it changes in place."""

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed(
            lambda failure: f"Error deleting instance template: {failure}",
            "Deleting Instance Template",
            resource_id,
        )


def unique(link: str) -> str:
    """A template by its number where the link has one, so that another of the same name is not meant."""
    path, _, number = link.partition("?uniqueId=")
    return f"{path.rpartition('/')[0]}/{number}" if number else path


def _body(inputs: Props) -> Doc:
    properties = machine(inputs)
    properties["machineType"] = inputs["machineType"]
    properties |= body_fields(inputs, description="instanceDescription")
    properties["disks"] = [_disk(each) for each in inputs["disks"]]
    if inputs.get("guestAccelerators"):
        properties["guestAccelerators"] = [
            {"acceleratorType": last(f"/{each['type']}"), "acceleratorCount": each["count"]}
            for each in inputs["guestAccelerators"]
        ]
    policies = inputs.get("resourcePolicies")
    if policies:
        # Templates belong to no region, so they name their policies.
        names = [policies] if isinstance(policies, str) else list(policies)
        properties["resourcePolicies"] = [last(f"/{each}") for each in names]
    return {**body_fields(inputs, "name", "description"), "properties": properties}


def _disk(each: Props) -> Doc:
    body = body_fields(
        each,
        "diskName",
        "diskSizeGb",
        "diskType",
        "labels",
        "provisionedIops",
        "provisionedThroughput",
        sourceImage="sourceImage",
    )
    params = {
        "autoDelete": each.get("autoDelete", True),
        "boot": bool(each.get("boot")),
        "type": each.get("type") or "PERSISTENT",
        "mode": each.get("mode") or "READ_WRITE",
        **body_fields(each, "deviceName", "interface", "source"),
    }
    return params if "source" in params else {**params, "initializeParams": body}


def _disk_outputs(doc: Doc) -> Props:
    params: Doc = doc.get("initializeParams") or {}
    return {
        **output_fields(doc, "autoDelete", "boot", "deviceName", "interface", "mode", "type"),
        **output_fields(params, "diskName", "diskType", "labels", "sourceImage"),
        **({"diskSizeGb": int(params["diskSizeGb"])} if params.get("diskSizeGb") else {}),
        "source": doc.get("source", ""),
    }


TYPES: Mapping[str, Kind] = {
    "gcp:compute/instanceTemplate:InstanceTemplate": InstanceTemplate(),
}
