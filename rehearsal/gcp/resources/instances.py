"""Instances: of their own, and from a template. Made and waited for, changed, removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orch.rehearsal.gcp.resources.calls import Api, ApiFailure, CallFailed
from orch.rehearsal.gcp.resources.instance_templates import unique
from orch.rehearsal.gcp.resources.kinds import Kind, Props, body_fields, last, output_fields
from orch.rehearsal.gcp.resources.shapes import access, items, machine, machine_outputs, scheduling
from orch.rehearsal.store import Doc

STOPPED = frozenset(
    {"machineType", "minCpuPlatform", "serviceAccount", "shieldedInstanceConfig", "enableDisplay"}
)
"""What changes only while an instance is stopped."""

MUST_STOP = (
    "Changing the machine_type, min_cpu_platform, service_account, enable_display, shielded_instance_config, "
    "scheduling.node_affinities, scheduling.max_run_duration or "
    "network_interface.[#d].(network/subnetwork/subnetwork_project) or advanced_machine_features on a "
    "started instance requires stopping it. To acknowledge this, please set "
    "allow_stopping_for_update = true in your config. "
    'You can also stop it by setting desired_status = "TERMINATED", but the instance will not be '
    "restarted after the update."
)


class Instance:
    def create(self, api: Api, inputs: Props) -> str:
        body = self._body(api, inputs)
        body["machineType"] = _zonal(api, "machineTypes", inputs["machineType"])
        body["disks"] = [_boot_disk(api, inputs["bootDisk"])]
        return self._insert(api, body)

    def _insert(self, api: Api, body: Doc, **params: Any) -> str:
        zone_path = f"projects/{api.project}/zones/{api.zone}"
        try:
            zone = api.get(zone_path)
        except ApiFailure as failure:
            raise CallFailed(f"Error loading zone '{api.zone}': {failure}") from failure
        if zone is None:
            why = f"googleapi: Error 404: The resource '{zone_path}' was not found, notFound"
            raise CallFailed(f"Error loading zone '{api.zone}': {why}")
        try:
            operation = api.send("POST", f"{zone_path}/instances", body, **params)
        except ApiFailure as failure:
            raise CallFailed(f"Error creating instance: {failure}") from failure
        api.wait("instance to create", operation)
        return f"{zone_path}/instances/{body['name']}"

    def _body(self, api: Api, inputs: Props) -> Doc:
        body = machine(inputs)
        body |= body_fields(inputs, "name", "description", "hostname", "deletionProtection")
        if inputs.get("guestAccelerators"):
            body["guestAccelerators"] = [
                {
                    "acceleratorType": _zonal(api, "acceleratorTypes", each["type"]),
                    "acceleratorCount": each["count"],
                }
                for each in inputs["guestAccelerators"]
            ]
        policies = inputs.get("resourcePolicies")
        if policies:
            body["resourcePolicies"] = [policies] if isinstance(policies, str) else list(policies)
        return body

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = api.get(resource_id)
        if doc is None:
            return None
        outputs = machine_outputs(doc, state)
        outputs |= output_fields(
            doc,
            "name",
            "description",
            "hostname",
            "deletionProtection",
            "cpuPlatform",
            "creationTimestamp",
            "labelFingerprint",
            "selfLink",
            currentStatus="status",
            instanceId="id",
        )
        outputs["zone"] = last(doc.get("zone"))
        disks: list[Doc] = doc.get("disks") or []
        boot = next((each for each in disks if each.get("boot")), None)
        if boot is not None:
            outputs["bootDisk"] = _boot_disk_outputs(api, boot)
        outputs["attachedDisks"] = [
            {**output_fields(each, "deviceName", "mode"), "source": each.get("source", "")}
            for each in disks
            if not each.get("boot") and each.get("type") != "SCRATCH"
        ]
        outputs["scratchDisks"] = [
            {**output_fields(each, "deviceName", "interface"), "size": int(each.get("diskSizeGb") or 375)}
            for each in disks
            if each.get("type") == "SCRATCH"
        ]
        return outputs

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        def call(verb: str, body: Doc | None = None, **params: Any) -> None:
            try:
                api.perform(f"instance to update ({verb})", "POST", f"{resource_id}/{verb}", body, **params)
            except ApiFailure as failure:
                raise CallFailed(f"Error updating instance ({verb}): {failure}") from failure

        if changed & {"labels", "pulumiLabels", "effectiveLabels"}:
            doc = api.get(resource_id) or {}
            labels = {
                "labels": inputs["effectiveLabels"],
                "labelFingerprint": doc.get("labelFingerprint", ""),
            }
            call("setLabels", labels)
        if "metadata" in changed:
            metadata = (api.get(resource_id) or {}).get("metadata") or {}
            new_items = items(inputs.get("metadata") or {})
            call("setMetadata", {"items": new_items, "fingerprint": metadata.get("fingerprint", "")})
        if "tags" in changed:
            metadata = (api.get(resource_id) or {}).get("tags") or {}
            wanted_tags = list(inputs.get("tags") or ())
            call("setTags", {"items": wanted_tags, "fingerprint": metadata.get("fingerprint", "")})
        if "scheduling" in changed and not _other_run(state, inputs):
            call("setScheduling", scheduling(inputs.get("scheduling") or {}))
        if "deletionProtection" in changed:
            call("setDeletionProtection", deletionProtection=bool(inputs.get("deletionProtection")))
        if "networkInterfaces" in changed:
            self._addresses(call, state, inputs)
        if changed & STOPPED or ("scheduling" in changed and _other_run(state, inputs)):
            if not inputs.get("allowStoppingForUpdate") and state.get("currentStatus") != "TERMINATED":
                raise CallFailed(MUST_STOP)
            call("stop")
            if "scheduling" in changed:
                call("setScheduling", scheduling(inputs.get("scheduling") or {}))
            if "machineType" in changed:
                call("setMachineType", {"machineType": _zonal(api, "machineTypes", inputs["machineType"])})
            if "serviceAccount" in changed:
                call("setServiceAccount", body_fields(inputs.get("serviceAccount") or {}, "email", "scopes"))
            call("start")

    def _addresses(self, call: Any, state: Props, inputs: Props) -> None:
        """Public addresses are taken away and given one by one."""
        for old, new in zip(state["networkInterfaces"], inputs["networkInterfaces"], strict=False):
            if bool(old.get("accessConfigs")) == bool(new.get("accessConfigs")):
                continue
            nic = old.get("name", "nic0")
            if old.get("accessConfigs"):
                call("deleteAccessConfig", accessConfig="external-nat", networkInterface=nic)
            for one in new.get("accessConfigs") or ():
                call("addAccessConfig", access(one), networkInterface=nic)

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        if state.get("deletionProtection"):
            raise CallFailed(
                "Cannot delete instance when instance Deletion Protection is enabled. "
                'Set deletion_protection to false for this resource and run "terraform apply" '
                "before attempting to delete it."
            )
        api.removed(lambda failure: f"Error deleting instance: {failure}", "instance to delete", resource_id)


class InstanceFromTemplate(Instance):
    """As the real provider does it: the template is read, its disks and its scheduling are sent along."""

    def create(self, api: Api, inputs: Props) -> str:
        link = unique(str(inputs["sourceInstanceTemplate"]))
        path = f"projects/{api.project}/global/instanceTemplates/{last(f'/{link}')}"
        template = api.send("GET", path)
        properties: Doc = template["properties"]
        body = self._body(api, inputs)
        if inputs.get("machineType"):
            body["machineType"] = _zonal(api, "machineTypes", inputs["machineType"])
        if inputs.get("bootDisk"):
            body["disks"] = [_boot_disk(api, inputs["bootDisk"])]
        else:
            body["disks"] = [_of_zone(api, each) for each in properties.get("disks") or ()]
        if not inputs.get("scheduling") and properties.get("scheduling"):
            body["scheduling"] = properties["scheduling"]
        return self._insert(api, body, sourceInstanceTemplate=path)


def _other_run(state: Props, inputs: Props) -> bool:
    """Whether how long it may run is to change: that wants it stopped, too."""
    runs = [(each.get("scheduling") or {}).get("maxRunDuration") or {} for each in (state, inputs)]
    return len({str(run.get("seconds") or 0) for run in runs}) > 1


def _zonal(api: Api, collection: str, name: str) -> str:
    """The URL of a type of a zone, from its name or its URL."""
    return f"projects/{api.project}/zones/{api.zone}/{collection}/{last(f'/{name}')}"


def _of_zone(api: Api, disk: Doc) -> Doc:
    """A template's disk for an instance: there, types are names."""
    params = disk.get("initializeParams")
    if not params or not params.get("diskType"):
        return disk
    kind = f"zones/{api.zone}/diskTypes/{last('/' + params['diskType'])}"
    return {**disk, "initializeParams": {**params, "diskType": kind}}


def _boot_disk(api: Api, disk: Props) -> Doc:
    made = disk.get("initializeParams") or {}
    params = body_fields(made, "labels", sourceImage="image", diskSizeGb="size")
    if made.get("type"):
        params["diskType"] = _zonal(api, "diskTypes", made["type"])
    body = {
        "boot": True,
        "autoDelete": disk.get("autoDelete", True),
        "mode": disk.get("mode") or "READ_WRITE",
        **body_fields(disk, "deviceName", "source"),
    }
    return {**body, "initializeParams": params} if params else body


def _boot_disk_outputs(api: Api, doc: Doc) -> Props:
    outputs = {
        **output_fields(doc, "autoDelete", "deviceName", "mode", "interface"),
        "source": doc.get("source", ""),
    }
    disk = api.get(str(doc["source"])) if doc.get("source") else None
    if disk is not None:
        outputs["initializeParams"] = {
            "image": disk.get("sourceImage", ""),
            "size": int(disk.get("sizeGb") or 0),
            "type": last(disk.get("type")),
            "labels": dict(disk.get("labels") or {}),
        }
    return outputs


TYPES: Mapping[str, Kind] = {
    "gcp:compute/instanceFromTemplate:InstanceFromTemplate": InstanceFromTemplate(),
    "gcp:compute/instance:Instance": Instance(),
}
