"""EBS volumes: create, modify, attach, detach, delete.

Sources: EC2 API reference, CreateVolume, ModifyVolume, AttachVolume, DetachVolume, DeleteVolume; EBS user
guide, "Volume states" and "Requirements for volume modifications"; EC2 user guide, "Device names".
"""

from __future__ import annotations

from collections.abc import Sequence

from orch.rehearsal.aws.api.actions import Request, action, page, path, select, stamp
from orch.rehearsal.aws.api.compute.capacity import live, state_of
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.data.tables import regions
from orch.rehearsal.store import Doc

# Type -> least and most GiB, least and most IOPS (None: not to be chosen), most throughput in MiB/s.
TYPES: dict[str, tuple[int, int, tuple[int, int] | None, int | None]] = {
    "gp3": (1, 65_536, (3_000, 80_000), 2_000),
    "gp2": (1, 16_384, None, None),
    "io1": (4, 16_384, (100, 64_000), None),
    "io2": (4, 65_536, (100, 256_000), None),
    "st1": (125, 16_384, None, None),
    "sc1": (125, 16_384, None, None),
    "standard": (1, 1_024, None, None),
}
# A volume may be modified again only so long after it was.
COOL_DOWN_S = 6 * 3600.0
ATTACHABLE = ("running", "stopped")


@action("CreateVolume")
def create_volume(request: Request) -> Doc:
    zone = request["AvailabilityZone"]
    if zone not in {each.name for each in regions()[request.region]}:
        raise AwsError("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
    kind = request.get("VolumeType", "gp2")
    size = request.get("Size")
    if size is None:
        raise AwsError("MissingParameter", "The request must contain the parameter size/snapshotId")
    _check(kind, size, request.get("Iops"), request.get("Throughput"))
    if request.get("KmsKeyId") and not request.get("Encrypted"):
        raise AwsError(
            "InvalidParameterDependency", "The parameter KmsKeyId requires the parameter Encrypted"
        )
    volume = request.cloud.new_id("vol")
    now = request.cloud.now()
    key = f"arn:aws:kms:{request.region}:{request.owner}:key/aws-ebs"
    doc: Doc = {
        "VolumeId": volume,
        "Size": size,
        "VolumeType": kind,
        "Iops": request.get("Iops") or _default_iops(kind, size),
        "Throughput": request.get("Throughput") or (125 if kind == "gp3" else None),
        "Encrypted": bool(request.get("Encrypted")),
        "KmsKeyId": (request.get("KmsKeyId") or key) if request.get("Encrypted") else None,
        "AvailabilityZone": zone,
        "State": "available",
        "CreateTime": stamp(now),
        "Attachments": [],
        "MultiAttachEnabled": False,
        "SnapshotId": "",
        "Tags": request.tags_for("volume"),
    }
    request.add(volume, "volume", doc)
    return {**doc, "State": "creating"}


@action("DescribeVolumes")
def describe_volumes(request: Request) -> Doc:
    ids = request.get("VolumeIds") or ()
    docs = [request.thing("volume", one) for one in ids] if ids else None
    fields = {
        "volume-id": path("VolumeId"),
        "availability-zone": path("AvailabilityZone"),
        "status": path("State"),
        "attachment.instance-id": path("Attachments", "InstanceId"),
    }
    return page(request, "Volumes", select(request, "volume", fields, docs=docs))


@action("ModifyVolume")
def modify_volume(request: Request) -> Doc:
    doc = request.thing("volume", request["VolumeId"])
    size, kind = request.get("Size") or doc["Size"], request.get("VolumeType") or doc["VolumeType"]
    if size < doc["Size"]:
        raise AwsError("InvalidParameterValue", "New size cannot be smaller than existing size")
    modified = doc.get("_modified")
    now = request.cloud.now()
    if modified is not None and now - modified < COOL_DOWN_S:
        raise AwsError(
            "VolumeModificationRateExceeded",
            "You've reached the maximum modification rate per volume limit. Wait at least 6 hours between "
            "modifications per EBS volume.",
        )
    _check(kind, size, request.get("Iops"), request.get("Throughput"))
    changed_kind = kind != doc["VolumeType"]
    doc |= {"Size": size, "VolumeType": kind, "_modified": now}
    for key, default in (("Iops", _default_iops(kind, size)), ("Throughput", 125 if kind == "gp3" else None)):
        if request.get(key) is not None or changed_kind:
            doc[key] = request.get(key) or default
    request.add(doc["VolumeId"], "volume", doc)
    return {"VolumeModification": {"VolumeId": doc["VolumeId"], "ModificationState": "completed"}}


@action("DescribeVolumesModifications")
def describe_volumes_modifications(request: Request) -> Doc:
    docs = [request.thing("volume", one) for one in request.get("VolumeIds") or ()]
    rows = [
        {"VolumeId": doc["VolumeId"], "ModificationState": "completed", "TargetSize": doc["Size"]}
        for doc in docs
        if "_modified" in doc
    ]
    return {"VolumesModifications": rows}


@action("DeleteVolume")
def delete_volume(request: Request) -> Doc:
    doc = request.thing("volume", request["VolumeId"])
    if doc.get("Attachments") or doc["State"] != "available":
        where = next((each["InstanceId"] for each in doc.get("Attachments") or ()), "an instance")
        raise AwsError("VolumeInUse", f"Volume {doc['VolumeId']} is currently attached to {where}")
    request.store.remove(doc["VolumeId"])
    return {"VolumeId": doc["VolumeId"]}


@action("AttachVolume")
def attach_volume(request: Request) -> Doc:
    doc = request.thing("volume", request["VolumeId"])
    instance = live(request, request["InstanceId"])
    identifier, device = instance["InstanceId"], request["Device"]
    if doc.get("Attachments") or doc["State"] != "available":
        raise AwsError("VolumeInUse", f"{doc['VolumeId']} is already attached to an instance")
    if state_of(request, instance) not in ATTACHABLE:
        raise AwsError("IncorrectState", f"Instance '{identifier}' is not 'running', or was not 'stopped'")
    if instance["Placement"]["AvailabilityZone"] != doc["AvailabilityZone"]:
        raise AwsError(
            "InvalidVolume.ZoneMismatch",
            f"The volume '{doc['VolumeId']}' is not in the same availability zone as instance '{identifier}'",
        )
    if device in {each["DeviceName"] for each in instance["BlockDeviceMappings"]}:
        raise AwsError(
            "InvalidParameterValue",
            f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use",
        )
    attachment: Doc = {
        "VolumeId": doc["VolumeId"],
        "InstanceId": identifier,
        "Device": device,
        "State": "attached",
        "AttachTime": stamp(request.cloud.now()),
        "DeleteOnTermination": False,
    }
    request.add(doc["VolumeId"], "volume", {**doc, "State": "in-use", "Attachments": [attachment]})
    mapping = attached_as(device, doc["VolumeId"], attachment["AttachTime"], delete=False)
    instance["BlockDeviceMappings"] = [*instance["BlockDeviceMappings"], mapping]
    request.add(identifier, "instance", instance)
    return {**attachment, "State": "attaching"}


def attached_as(device: str, volume: str, since: str, *, delete: bool) -> Doc:
    """An entry of an instance's `BlockDeviceMappings`. `delete`: the volume goes with the instance."""
    return {
        "DeviceName": device,
        "Ebs": {
            "VolumeId": volume,
            "Status": "attached",
            "AttachTime": since,
            "DeleteOnTermination": delete,
        },
    }


def launch_volumes(
    request: Request, rows: Sequence[Doc], image: Doc, *, zone: str, tags: list[Doc], now: float
) -> list[Doc]:
    """Create the volumes of a launch, the root's among them; the instance's `BlockDeviceMappings`."""
    root = image["RootDeviceName"]
    requested = {one["DeviceName"]: one for one in rows if one.get("Ebs")}
    mappings = []
    for name in dict.fromkeys([root, *requested]):
        settings = (requested.get(name) or {}).get("Ebs") or {}
        volume = request.cloud.new_id("vol")
        size = settings.get("VolumeSize") or image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
        request.add(
            volume,
            "volume",
            {
                "VolumeId": volume,
                "Size": size,
                "VolumeType": settings.get("VolumeType", "gp3"),
                "Iops": settings.get("Iops", 3000),
                "Throughput": settings.get("Throughput", 125),
                "Encrypted": bool(settings.get("Encrypted")),
                "KmsKeyId": settings.get("KmsKeyId"),
                "AvailabilityZone": zone,
                "State": "in-use",
                "Tags": tags,
            },
        )
        delete = settings.get("DeleteOnTermination", True)
        mappings.append(attached_as(name, volume, stamp(now), delete=delete))
    return mappings


@action("DetachVolume")
def detach_volume(request: Request) -> Doc:
    doc = request.thing("volume", request["VolumeId"])
    attachment = next(iter(doc.get("Attachments") or ()), None)
    if attachment is None:
        raise AwsError("IncorrectState", f"Volume '{doc['VolumeId']}' is in the 'available' state.")
    if request.get("InstanceId", attachment["InstanceId"]) != attachment["InstanceId"]:
        raise AwsError(
            "InvalidAttachment.NotFound",
            f"The volume '{doc['VolumeId']}' is not attached to instance '{request['InstanceId']}'",
        )
    release(request, doc)
    return {**attachment, "State": "detaching"}


def release(request: Request, doc: Doc) -> None:
    """A volume is free, and no disk of its instance any more."""
    for attachment in doc.get("Attachments") or ():
        instance = request.store.get(attachment["InstanceId"], "instance")
        if instance is not None:
            instance["BlockDeviceMappings"] = [
                each for each in instance["BlockDeviceMappings"] if each["Ebs"]["VolumeId"] != doc["VolumeId"]
            ]
            request.add(attachment["InstanceId"], "instance", instance)
    request.add(doc["VolumeId"], "volume", {**doc, "State": "available", "Attachments": []})


def _default_iops(kind: str, size: int) -> int | None:
    if kind == "gp2":
        return min(max(100, 3 * size), 16_000)
    return 3_000 if kind == "gp3" else None


def _check(kind: str, size: int, iops: int | None, throughput: int | None) -> None:
    """Raises AwsError for what no volume of the type has."""
    if kind not in TYPES:
        raise AwsError("UnknownVolumeType", f"Unsupported volume type '{kind}' for volume creation.")
    least, most, range_, fastest = TYPES[kind]
    if not least <= size <= most:
        raise AwsError(
            "InvalidParameterValue",
            f"Volume of {size}GiB is {'too small' if size < least else 'too large'} for volume type {kind}; "
            f"{'minimum' if size < least else 'maximum'} is {least if size < least else most}GiB.",
        )
    if iops is not None and range_ is None:
        raise AwsError(
            "InvalidParameterCombination", f"The parameter iops is not supported for {kind} volumes."
        )
    if iops is None and kind in ("io1", "io2"):
        raise AwsError("MissingParameter", "The request must contain the parameter iops")
    if iops is not None and range_ is not None and not range_[0] <= iops <= range_[1]:
        word, limit = ("minimum", range_[0]) if iops < range_[0] else ("maximum", range_[1])
        raise AwsError("InvalidParameterValue", f"Volume iops of {iops} is out of range; {word} is {limit}.")
    if throughput is not None and fastest is None:
        raise AwsError(
            "InvalidParameterCombination", f"The parameter throughput is not supported for {kind} volumes."
        )
    if throughput is not None and fastest is not None and not 125 <= throughput <= fastest:
        raise AwsError(
            "InvalidParameterValue", f"Throughput of {throughput} MiB/s is out of range 125-{fastest}."
        )
