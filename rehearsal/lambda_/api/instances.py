"""Instances: what there is of types, regions and images, what is refused at once, how one comes up and goes.

A launch makes one. It boots for some looks; one that was terminated is terminating for a while, then gone.
Source: Lambda Cloud API 1.10, listInstanceTypes, listRegions, listImages, launchInstance, terminateInstance,
InstanceStatus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from orch.rehearsal.http_service import Answer, Request
from orch.rehearsal.lambda_.api.bodies import Launch, Terminate, checked
from orch.rehearsal.lambda_.api.errors import invalid, no_capacity, not_there, over_quota, wrong_region
from orch.rehearsal.lambda_.api.routes import existing, new_id, region_of, route, told
from orch.rehearsal.lambda_.data.tables import ARCHITECTURES, IMAGES, REGIONS, Kind, kinds
from orch.rehearsal.store import Doc


def free(request: Request, kind: Kind, region: str) -> bool:
    """Whether an instance of a type can be had in a region."""
    if region not in kind.regions:
        return False
    known = request.account.knobs_now().capacity
    keys = (f"{kind.name}@{region}", kind.name, f"*@{region}")
    limit = next((known[key] for key in keys if key in known), None)
    running = sum(
        1
        for doc in request.each("instance")
        if (doc["_type"], doc["_region"], doc["_holds"]) == (kind.name, region, True)
    )
    return limit is None or running < limit


def type_document(kind: Kind) -> Doc:
    return {
        "name": kind.name,
        "description": f"{kind.gpus}x {kind.description}" if kind.gpus else "General",
        "gpu_description": kind.description or "N/A",
        "price_cents_per_hour": kind.cents,
        "specs": {
            "vcpus": kind.vcpus,
            "memory_gib": kind.memory_gib,
            "storage_gib": kind.storage_gib,
            "gpus": kind.gpus,
        },
    }


def images_there() -> list[Doc]:
    return [
        {
            "id": hashlib.sha256(f"{family} {arch} {region}".encode()).hexdigest()[:32],
            "name": family,
            "family": family,
            "version": version,
            "architecture": arch,
            "region": region_of(region),
            "created_time": made,
            "updated_time": made,
        }
        for family, version, made in IMAGES
        for arch in ARCHITECTURES
        for region in REGIONS
    ]


@route("GET", "/instance-types", "listInstanceTypes")
def instance_types(request: Request) -> Answer:
    return told(
        {
            kind.name: {
                "instance_type": type_document(kind),
                "regions_with_capacity_available": [
                    region_of(region) for region in kind.regions if free(request, kind, region)
                ],
            }
            for kind in kinds().values()
        }
    )


@route("GET", "/regions", "listRegions")
def regions(request: Request) -> Answer:
    return told([region_of(name) for name in REGIONS])


@route("GET", "/images", "listImages")
def images(request: Request) -> Answer:
    return told(images_there())


QUOTA = "instances"
"""The knob for how many instances an account may have at once."""


@route("POST", "/instance-operations/launch", "launchInstance")
def launch(request: Request) -> Answer:
    body = checked(Launch, request.body)
    kind = kinds().get(body.instance_type_name)
    if kind is None or body.region_name not in REGIONS:
        raise invalid(f"instance_type_name {body.instance_type_name}, region_name {body.region_name}")
    if not any(doc["name"] == body.ssh_key_names[0] for doc in request.each("ssh-key")):
        raise not_there(f"SSH key {body.ssh_key_names[0]}")
    _check_image(body, kind.arch)
    mounts: dict[str, str] = {}
    for each in body.file_system_mounts:
        found = existing(request, "filesystem", each.file_system_id)
        if found["region"]["name"] != body.region_name:
            raise wrong_region(f"{found['name']} is in {found['region']['name']}")
        mounts[each.mount_point] = found["id"]
    limit = request.account.knobs_now().quotas.get(QUOTA)
    there = [doc for doc in request.each("instance") if doc["_holds"]]
    if limit is not None and len(there) >= limit:
        raise over_quota()
    if not free(request, kind, body.region_name):
        raise no_capacity()
    doc: Doc = {
        "id": new_id(request, "instance"),
        "name": body.name,
        "status": "booting",
        "ssh_key_names": body.ssh_key_names,
        "file_system_names": [existing(request, "filesystem", each)["name"] for each in mounts.values()],
        "region": region_of(body.region_name),
        "instance_type": type_document(kind),
        "hostname": body.hostname,
        "is_reserved": False,
        "tags": [each.model_dump() for each in body.tags],
        "_type": kind.name,
        "_region": body.region_name,
        "_holds": True,
        "_looks": 0,
        "_since": request.account.now(),
        "_mounts": mounts,
        "_user_data": body.user_data,
        "_cluster": None,
    }
    if mounts:
        pairs = mounts.items()
        doc["file_system_mounts"] = [{"mount_point": path, "file_system_id": fs} for path, fs in pairs]
    put(request, doc)
    return told({"instance_ids": [doc["id"]]})


def reserved(instance: str, name: str, kind: str, cluster: str, addresses: Mapping[str, str]) -> Doc:
    """An instance of a 1-Click Cluster, which no call makes. Nodes behind its head have no public address."""
    return {
        "id": instance,
        "name": name,
        "status": "active",
        "ssh_key_names": [],
        "file_system_names": [],
        "region": region_of("us-east-1"),
        "instance_type": type_document(kinds()[kind]),
        "hostname": name,
        "is_reserved": True,
        "tags": [],
        **addresses,
        "_type": kind,
        "_region": "us-east-1",
        "_holds": False,
        "_looks": 0,
        "_since": 0.0,
        "_mounts": {},
        "_user_data": "",
        "_cluster": cluster,
    }


def _check_image(body: Launch, arch: str) -> None:
    if body.image is None:
        return
    if bool(body.image.id) == bool(body.image.family):
        raise invalid("image: id, or family")
    here = [each for each in images_there() if each["region"]["name"] == body.region_name]
    fits = [each for each in here if each["architecture"] == arch]
    if not any(body.image.id == each["id"] or body.image.family == each["family"] for each in fits):
        raise not_there("Image")


def put(request: Request, doc: Doc) -> None:
    request.store.put(doc["id"], "instance", doc["_region"], doc)


def seen(request: Request, doc: Doc) -> Doc | None:
    """An instance, looked at once more: it takes the next step where its time has come; None: it is gone."""
    looks, knobs = doc["_looks"] + 1, request.account.knobs_now()
    age = request.account.now() - doc["_since"]
    doc = {**doc, "_looks": looks}
    if doc["status"] == "terminating" and looks >= 2 and age >= knobs.shutting_down_s:
        request.store.remove(doc["id"])
        return None
    if doc["status"] == "booting" and looks >= 2 and age >= knobs.pending_s:
        doc |= {"status": "active", "ip": _public(request, doc["id"]), "private_ip": _private(request, doc)}
        request.account.note("born", doc["id"])
    put(request, doc)
    return doc


def _private(request: Request, doc: Doc) -> str:
    region = list(REGIONS).index(doc["_region"])
    number = next(n for n in range(2, 65_536) if request.store.take(f"private {region}", str(n), doc["id"]))
    return f"10.{region}.{number // 256}.{number % 256}"


def _public(request: Request, instance: str) -> str:
    number = next(n for n in range(1, 65_536) if request.store.take("public addresses", str(n), instance))
    return f"198.19.{number // 256}.{number % 256}"  # RFC 2544: of nobody


def ended(request: Request, doc: Doc, status: str = "terminating") -> None:
    """One that is off: by its own power button, or because its host is broken (`unhealthy`)."""
    request.account.note("dead", doc["id"])
    gone = {"status": status, "_looks": 0, "_since": request.account.now()}
    put(request, {**doc, **gone, "_holds": status != "terminating"})


@route("GET", "/instances", "listInstances")
def instances(request: Request) -> Answer:
    known = [found for doc in list(request.each("instance")) if (found := seen(request, doc)) is not None]
    cluster = request.query.get("cluster_id")
    return told([doc for doc in known if cluster in (None, doc["_cluster"])])


@route("GET", "/instances/{id}", "getInstance")
def get(request: Request) -> Answer:
    found = seen(request, existing(request, "instance"))
    if found is None:
        error = not_there("Specified instance")
        return Answer(error.status, error.document())  # the look is kept
    return told(found)


@route("POST", "/instance-operations/terminate", "terminateInstance")
def terminate(request: Request) -> Answer:
    docs = [existing(request, "instance", each) for each in checked(Terminate, request.body).instance_ids]
    for doc in docs:
        if doc["status"] != "terminating":
            ended(request, doc)
    return told({"terminated_instances": [{**doc, "status": "terminating"} for doc in docs]})
