"""Disks as Pulumi resources."""

from __future__ import annotations

from collections.abc import Mapping

from orch.rehearsal.gcp.resources.calls import Api
from orch.rehearsal.gcp.resources.kinds import Generated, Kind, Props, body_fields, last, output_fields
from orch.rehearsal.store import Doc


class Disk(Generated):
    title = "Disk"
    path_template = "projects/{project}/zones/{zone}/disks/{name}"

    def path(self, api: Api, inputs: Props) -> str:
        return self.path_template.format(
            project=inputs.get("project") or api.project,
            zone=inputs.get("zone") or api.zone,
            name=inputs["name"],
        )

    def body(self, api: Api, inputs: Props) -> Doc:
        body = body_fields(inputs, "name", "description", "provisionedIops", "provisionedThroughput")
        zone = inputs.get("zone") or api.zone
        if inputs.get("type"):
            kind = last(inputs["type"])
            body["type"] = f"projects/{api.project}/zones/{zone}/diskTypes/{kind}"
        if inputs.get("size") is not None:
            body["sizeGb"] = str(int(inputs["size"]))
        key = (inputs.get("diskEncryptionKey") or {}).get("kmsKeySelfLink")
        if key:
            body["diskEncryptionKey"] = {"kmsKeyName": key}
        if inputs.get("effectiveLabels"):
            body["labels"] = dict(inputs["effectiveLabels"])
        return body

    def outputs(self, doc: Doc, state: Props) -> Props:
        outputs = output_fields(
            doc, "name", "description", "creationTimestamp", "labelFingerprint", "selfLink", diskId="id"
        )
        for name in ("provisionedIops", "provisionedThroughput", "physicalBlockSizeBytes"):
            if name in doc:
                outputs[name] = int(doc[name])
        key = (doc.get("diskEncryptionKey") or {}).get("kmsKeyName")
        return {
            **outputs,
            "size": int(doc["sizeGb"]),
            "type": last(doc["type"]),
            "zone": last(doc["zone"]),
            "users": list(doc.get("users") or ()),
            "Labels": dict(doc.get("labels") or {}),
            **({"diskEncryptionKey": {"kmsKeySelfLink": key}} if key else {}),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if "size" in changed:
            body = {"sizeGb": str(int(inputs["size"]))}
            self.change(api, resource_id, "POST", f"{resource_id}/resize", body)
        if "effectiveLabels" in changed or "labels" in changed:
            body = {
                "labels": dict(inputs.get("effectiveLabels") or {}),
                "labelFingerprint": state.get("labelFingerprint"),
            }
            self.change(api, resource_id, "POST", f"{resource_id}/setLabels", body)


TYPES: Mapping[str, Kind] = {"gcp:compute/disk:Disk": Disk()}
