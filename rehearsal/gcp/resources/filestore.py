"""Filestore instances as Pulumi resources."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from orch.rehearsal.gcp.resources.calls import Api, ApiFailure, CallFailed
from orch.rehearsal.gcp.resources.kinds import Kind, Props
from orch.rehearsal.store import Doc

POLL_S = 0.1


class FilestoreInstance:
    def create(self, api: Api, inputs: Props) -> str:
        location = inputs.get("location") or inputs.get("zone") or api.zone
        parent = f"projects/{inputs.get('project') or api.project}/locations/{location}/instances"
        share = inputs["fileShares"]
        body: Doc = {
            "tier": inputs["tier"],
            "description": inputs.get("description") or "",
            "labels": dict(inputs.get("effectiveLabels") or {}),
            "fileShares": [{"name": share["name"], "capacityGb": str(int(share["capacityGb"]))}],
            "networks": [dict(each) for each in inputs["networks"]],
        }
        if inputs.get("protocol"):
            body["protocol"] = inputs["protocol"]
        self._perform(api, "creating", "POST", parent, body, instanceId=inputs["name"])
        return f"{parent}/{inputs['name']}"

    def _perform(
        self, api: Api, what: str, method: str, path: str, body: Doc | None = None, **params: Any
    ) -> None:
        try:
            operation = api.send(method, path, body, **params)
            while not operation["done"]:
                time.sleep(POLL_S)
                operation = api.send("GET", str(operation["name"]))
        except ApiFailure as failure:
            if what == "deleting" and failure.status == 404:
                return
            raise CallFailed(f"Error {what} Instance: {failure}") from failure

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = api.get(resource_id)
        if doc is None:
            return None
        share, network = doc["fileShares"][0], doc["networks"][0]
        return {
            "createTime": doc["createTime"],
            "description": doc["description"],
            "etag": doc["etag"],
            "fileShares": {"name": share["name"], "capacityGb": int(share["capacityGb"])},
            "location": resource_id.split("/")[3],
            "name": resource_id.rpartition("/")[2],
            "networks": [network],
            "project": resource_id.split("/")[1],
            "protocol": doc["protocol"],
            "tier": doc["tier"],
            "Labels": dict(doc["labels"]),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        body: Doc = {}
        if "fileShares" in changed:
            share = inputs["fileShares"]
            body["fileShares"] = [{"name": share["name"], "capacityGb": str(int(share["capacityGb"]))}]
        if changed & {"labels", "pulumiLabels", "effectiveLabels"}:
            body["labels"] = dict(inputs.get("effectiveLabels") or {})
        if "description" in changed:
            body["description"] = inputs.get("description") or ""
        if body:
            self._perform(api, "updating", "PATCH", resource_id, body, updateMask=",".join(sorted(body)))

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        self._perform(api, "deleting", "DELETE", resource_id)
        while api.get(resource_id) is not None:
            time.sleep(POLL_S)


TYPES: Mapping[str, Kind] = {"gcp:filestore/instance:Instance": FilestoreInstance()}
