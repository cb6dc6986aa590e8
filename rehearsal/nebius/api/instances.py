"""Virtual machines: what is refused at once, what only later, and how a machine comes up and goes.

Source: proto nebius.compute.v1 (instance.proto, network_interface.proto); Nebius documentation, "Virtual
machine lifecycle"; dstack issue 2977 and skypilot PR 6856 for what missing capacity looks like: the create is
accepted, the machine falls back to STOPPED and the operation ends with RESOURCE_EXHAUSTED.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Any

from orch.rehearsal.nebius.api.compute import checked_disk, free, image_of, members, quota_error
from orch.rehearsal.nebius.api.errors import bad_request, bad_state, no_capacity
from orch.rehearsal.nebius.api.methods import (
    Request,
    existing,
    make,
    method,
    named,
    of_parent,
    operation,
    page,
    put,
    stamp,
)
from orch.rehearsal.nebius.data.tables import Preset, platform_of_fabric, presets
from orch.rehearsal.store import Doc

MOST_USER_DATA = 32_768
MOST_BATCH = 1000
_HOSTNAME = re.compile(r"[a-z0-9][a-z0-9-]{0,61}[a-z0-9]")
_INTERFACE = re.compile(r"[0-9a-z][0-9a-z-]*")
_IMMUTABLE = ("gpu_cluster", "preemptible", "recovery_policy", "hostname", "network_interfaces")


# -- what is refused at once


@method("compute.v1.InstanceService", "Create")
def create(request: Request) -> Doc:
    spec, region = request.body.get("spec") or {}, request.region
    preset = checked_preset(spec, region)
    place = _place(request, spec, preset, region)
    _check_market(spec, preset)
    _check_interfaces(request, spec)
    _check_rest(spec)
    boot = spec.get("boot_disk") or {}
    if boot.get("attach_mode") != "READ_WRITE":
        raise bad_request("spec.boot_disk.attach_mode", "a boot disk is READ_WRITE")
    managed = boot.get("managed_disk")
    if managed is not None:
        checked_disk(request, managed.get("spec") or {}, "spec.boot_disk.managed_disk.spec")
        if image_of(request, managed["spec"], "spec.boot_disk.managed_disk.spec") is None:
            raise bad_request("spec.boot_disk.managed_disk.spec.source", "a boot disk needs an image")
    elif not (boot.get("existing_disk") or {}).get("id"):
        raise bad_request("spec.boot_disk", "exactly one of existing_disk and managed_disk")
    if refusal := quota_error(request, preset, region):
        raise refusal
    spot = "preemptible" in spec
    left = free(request, preset, place, spot=spot)
    there = left is None or left > 0
    now = request.account.now()
    instance_id, doc = make(
        request,
        "instance",
        "computeinstance",
        {"state": "STOPPED", "reconciling": True},
        _type=preset.type,
        _place=place,
        _spot=spot,
        _holds=there,
        _looks=0,
        _since=now,
        _goal="RUNNING" if there else "NO_CAPACITY",
    )
    if managed is not None:
        _managed_disk(request, doc, managed)
    put(request, "instance", doc)
    return operation(request, instance_id, error=None if there else no_capacity(preset.type))


def checked_preset(spec: Doc, region: str) -> Preset:
    resources = spec.get("resources") or {}
    platform, name = str(resources.get("platform") or ""), str(resources.get("preset") or "")
    if platform not in {each.platform for each in presets().values() if region in each.regions}:
        raise bad_request("spec.resources.platform", f"platform {platform} not found in {region}")
    preset = presets().get((platform, name))
    if preset is None or region not in preset.regions:
        raise bad_request("spec.resources.preset", f"platform {platform} has no preset {name} in {region}")
    return preset


def _place(request: Request, spec: Doc, preset: Preset, region: str) -> str:
    """The fabric that the machine is on, else its region."""
    cluster_id = (spec.get("gpu_cluster") or {}).get("id")
    if not cluster_id:
        return region
    cluster = existing(request, "gpu-cluster", str(cluster_id))
    if cluster["metadata"]["parent_id"] != request.parent:
        raise bad_request("spec.gpu_cluster.id", "the GPU cluster is of another project")
    if not preset.clustering:
        raise bad_request("spec.gpu_cluster", f"preset {preset.name} does not support GPU clustering")
    fabric = str(cluster["spec"]["infiniband_fabric"])
    if platform_of_fabric()[region, fabric] != preset.platform:
        raise bad_request("spec.gpu_cluster", f"fabric {fabric} is not of platform {preset.platform}")
    return fabric


def _check_market(spec: Doc, preset: Preset) -> None:
    if "preemptible" in spec:
        if not preset.spot:
            raise bad_request("spec.preemptible", f"platform {preset.platform} is not sold preemptible")
        if spec["preemptible"].get("on_preemption") != "STOP":
            raise bad_request("spec.preemptible.on_preemption", "STOP")
        if spec.get("recovery_policy") != "FAIL":
            raise bad_request("spec.recovery_policy", "FAIL for preemptible machines")
        if (spec.get("reservation_policy") or {}).get("reservation_ids"):
            raise bad_request("spec.reservation_policy", "not for preemptible machines")
    elif "follows_spot_price" in spec:
        raise bad_request("spec.follows_spot_price", "for preemptible machines only")


def _check_interfaces(request: Request, spec: Doc) -> None:
    interfaces = spec.get("network_interfaces") or []
    if not 1 <= len(interfaces) <= 8:
        raise bad_request("spec.network_interfaces", "1 to 8")
    for index, nic in enumerate(interfaces):
        path = f"spec.network_interfaces[{index}]"
        subnet = request.store.get(str(nic.get("subnet_id") or ""), "subnet")
        if subnet is None or subnet["metadata"]["parent_id"] != request.parent:
            raise bad_request(f"{path}.subnet_id", "subnet not found")
        if not _INTERFACE.fullmatch(str(nic.get("name") or "")):
            raise bad_request(f"{path}.name", "^[0-9a-z][0-9a-z-]*$")
        if "ip_address" not in nic:
            raise bad_request(f"{path}.ip_address", "required")
        for group in nic.get("security_groups") or ():
            row = request.store.get(str(group.get("id") or ""), "security-group")
            if row is None or row["spec"]["network_id"] != subnet["spec"]["network_id"]:
                raise bad_request(f"{path}.security_groups", "security group of another network")


def _check_rest(spec: Doc) -> None:
    if len(str(spec.get("cloud_init_user_data") or "")) > MOST_USER_DATA:
        raise bad_request("spec.cloud_init_user_data", f"at most {MOST_USER_DATA} characters")
    if (name := spec.get("hostname")) and not _HOSTNAME.fullmatch(str(name)):
        raise bad_request("spec.hostname", _HOSTNAME.pattern)


def _managed_disk(request: Request, doc: Doc, managed: Doc) -> None:
    """The disk that comes and goes with the machine."""
    instance_id, metadata = doc["metadata"]["id"], doc["metadata"]
    name = str(managed.get("name") or f"{metadata['name']}-boot")
    size = checked_disk(request, managed["spec"], "spec.boot_disk.managed_disk.spec")
    body = {"metadata": {"parent_id": request.parent, "name": name, "labels": managed.get("labels") or {}}}
    status = {
        "state": "READY",
        "size_bytes": str(size * 2**30),
        "read_write_attachment": instance_id,
        "managed_by": instance_id,
    }
    disk_id, _ = make(
        Request(request.account, request.service, request.method, {**body, "spec": managed["spec"]}),
        "disk",
        "computedisk",
        status,
    )
    doc["_disk"] = disk_id
    doc["status"]["disk_attachments"] = [{"id": disk_id, "name": name, "is_managed": True}]


# -- how it comes up


def advanced(request: Request, doc: Doc) -> Doc:
    """A machine as it is now, looked at once more.

    It takes some looks and some time: STOPPED (reconciling), STARTING, RUNNING; or, where there is no
    capacity, STOPPED again.
    """
    goal = doc["_goal"]
    if goal is None:
        return doc
    looks, age = doc["_looks"] + 1, request.account.now() - doc["_since"]
    knobs, status = request.account.knobs_now(), doc["status"]
    doc = {**doc, "_looks": looks}
    if goal == "GONE":
        pass  # `remove_gone` ends it
    elif goal == "STOPPED":
        doc |= {
            "_goal": None,
            "_holds": False,
            "status": {**status, "state": "STOPPED", "reconciling": False},
        }
    elif goal == "NO_CAPACITY" and looks >= 3:
        doc |= {"_goal": None, "status": {**status, "state": "STOPPED", "reconciling": False}}
    elif goal == "RUNNING" and looks >= 3 and age >= knobs.pending_s:
        doc |= {"_goal": None, "status": _running(request, doc)}
        request.account.note("born", doc["metadata"]["id"])
    elif looks >= 2:
        doc["status"] = {**status, "state": "STARTING"}
    put(request, "instance", doc)
    return doc


def _running(request: Request, doc: Doc) -> Doc:
    """The status of a machine that runs: its addresses, and where it stands in the InfiniBand network."""
    instance_id = doc["metadata"]["id"]
    interfaces: list[Doc] = []
    for index, nic in enumerate(doc["spec"]["network_interfaces"]):
        shown: Doc = {
            "index": index,
            "name": nic["name"],
            "ip_address": {"address": f"{_address(request, nic['subnet_id'], instance_id)}/32"},
            "fqdn": f"{doc['spec'].get('hostname') or instance_id}.{nic['subnet_id']}.compute.internal.",
        }
        if "public_ip_address" in nic:
            shown["public_ip_address"] = {"address": f"{_public(request, instance_id)}/32"}
        interfaces.append(shown)
    status = {**doc["status"], "state": "RUNNING", "reconciling": False, "network_interfaces": interfaces}
    cluster = (doc["spec"].get("gpu_cluster") or {}).get("id")
    if cluster:
        position = [each["metadata"]["id"] for each in members(request, cluster)].index(instance_id)
        seed = hashlib.sha256(f"{request.account.seed} {doc['_place']}".encode()).hexdigest()
        path = [
            f"root-{seed[:8]}",
            f"spine-{seed[8:14]}-{position // 8}",
            f"leaf-{seed[14:20]}-{position // 2}",
        ]
        status["infiniband_topology_path"] = {"path": path}
    return status


def _address(request: Request, subnet_id: str, instance_id: str) -> str:
    subnet = request.store.get(subnet_id, "subnet")
    assert subnet is not None
    block = ipaddress.ip_network(subnet["status"]["ipv4_private_cidrs"][0])
    for number in range(3, block.num_addresses - 1):
        address = str(block[number])
        if request.store.take(f"addresses {subnet_id}", address, instance_id):
            return address
    raise bad_state(subnet_id, "no free address", service="vpc")


def _public(request: Request, instance_id: str) -> str:
    number = next(n for n in range(1, 65_536) if request.store.take("public addresses", str(n), instance_id))
    return f"198.18.{number // 256}.{number % 256}"  # RFC 2544: of nobody


# -- reading


def _public_part(doc: Doc) -> Doc:
    """Without the user data, which Nebius does not show: it is marked as sensitive."""
    return {
        **doc,
        "spec": {key: value for key, value in doc["spec"].items() if key != "cloud_init_user_data"},
    }


@method("compute.v1.InstanceService", "Get")
def get(request: Request) -> Doc:
    return _public_part(advanced(request, existing(request, "instance", str(request.body.get("id") or ""))))


@method("compute.v1.InstanceService", "GetByName")
def get_by_name(request: Request) -> Doc:
    return _public_part(named(request, "instance"))


@method("compute.v1.InstanceService", "List")
def instances(request: Request) -> Doc:
    request.project()
    known = [advanced(request, doc) for doc in list(of_parent(request, "instance"))]
    return page(request, [_public_part(doc) for doc in known])


@method("compute.v1.InstanceService", "BatchGet")
def batch_get(request: Request) -> Doc:
    ids = request.body.get("instance_ids") or []
    if not 1 <= len(ids) <= MOST_BATCH:
        raise bad_request("instance_ids", f"1 to {MOST_BATCH}")
    items: dict[str, Any] = {}
    for instance_id in ids:
        doc = request.store.get(instance_id, "instance")
        if doc is None:
            items[instance_id] = {"error": {"code": 5, "message": f"{instance_id} not found"}}
        else:
            items[instance_id] = {"instance": _public_part(advanced(request, doc))}
    return {"items": items}


# -- changing and deleting


@method("compute.v1.InstanceService", "Update")
def update(request: Request) -> Doc:
    metadata, spec = request.body["metadata"], request.body.get("spec") or {}
    instance_id = str(metadata.get("id") or "")
    doc = existing(request, "instance", instance_id)
    if (spec.get("resources") or {}).get("platform") != doc["spec"]["resources"]["platform"]:
        raise bad_request("spec.resources.platform", "immutable")
    for name in _IMMUTABLE:
        if name in spec and spec[name] != doc["spec"].get(name):
            raise bad_request(f"spec.{name}", "immutable")
    version = int(doc["metadata"]["resource_version"]) + 1
    doc["metadata"] |= {"labels": metadata.get("labels") or {}, "resource_version": str(version)}
    doc["metadata"]["updated_at"] = stamp(request.account.now())
    put(request, "instance", doc)
    return operation(request, instance_id)


@method("compute.v1.InstanceService", "Delete")
def delete(request: Request) -> Doc:
    """With the disks that the machine manages. The machine is there for a while yet."""
    instance_id = str(request.body.get("id") or "")
    doc = existing(request, "instance", instance_id)
    request.account.note("dead", instance_id)
    changed = {"_goal": "GONE", "_looks": 0, "_since": request.account.now(), "_holds": False}
    status = {**doc["status"], "state": "DELETING", "reconciling": True}
    put(request, "instance", {**doc, **changed, "status": status})
    return operation(request, instance_id)


@method("compute.v1.InstanceService", "Stop")
def stop(request: Request) -> Doc:
    instance_id = str(request.body.get("id") or "")
    doc = existing(request, "instance", instance_id)
    stopped(request, {**doc, "spec": {**doc["spec"], "stopped": True}})
    return operation(request, instance_id)


def stopped(request: Request, doc: Doc) -> None:
    """A machine that stops: by a call, by its own power button, or because it is taken back."""
    request.account.note("dead", doc["metadata"]["id"])
    status = {**doc["status"], "state": "STOPPED", "reconciling": False}
    status.pop("network_interfaces", None)
    put(request, "instance", {**doc, "_goal": None, "_holds": False, "status": status})


def restarted(request: Request, doc: Doc) -> None:
    """A machine whose operating system powered it off, which Nebius takes for a failure."""
    request.account.note("dead", doc["metadata"]["id"])
    status = {**doc["status"], "state": "STOPPED", "reconciling": True}
    again = {"_goal": "RUNNING", "_looks": 0, "_since": request.account.now()}
    put(request, "instance", {**doc, **again, "status": status})


def remove_gone(request: Request) -> None:
    """Remove the machines that were deleted and looked at since, with the disks that they manage.

    In a transaction of its own: a call that finds one gone is refused, and what it did would be undone.
    """
    wait_s = request.account.knobs_now().shutting_down_s
    for instance_id, doc in request.store.each("instance"):
        if doc["_goal"] == "GONE" and doc["_looks"] and request.account.now() - doc["_since"] >= wait_s:
            if disk := doc.get("_disk"):
                request.store.remove(disk)
            request.store.remove(instance_id)
