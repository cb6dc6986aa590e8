"""EFS: file systems and their mount targets. Sources: rehearsal/README.md, "File systems"."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request, action, public, stamp, tag_list, tag_map
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.api.network.addresses import make_interface, remove_interface
from orch.rehearsal.aws.api.network.subnets import free_addresses
from orch.rehearsal.aws.api.storage import note_gone
from orch.rehearsal.aws.data.tables import regions
from orch.rehearsal.store import Doc

FILE_SYSTEM, TARGET = "efs-file-system", "efs-mount-target"
FASTEST = 3414
DAY_S = 24 * 3600.0
MODES = ("bursting", "provisioned", "elastic")
MOST_GROUPS = 5


@action("CreateFileSystem", "efs")
def create_file_system(request: Request) -> Doc:
    token = request["CreationToken"]
    existing = request.store.find(FILE_SYSTEM, token, request.region)
    if existing is not None:
        raise AwsError(
            "FileSystemAlreadyExists",
            f"File system '{existing}' already exists with creation token '{token}'",
        )
    if request.store.tally(FILE_SYSTEM, request.region) >= request.cloud.quota("L-848C634D"):
        raise AwsError("FileSystemLimitExceeded", "You have reached the maximum number of file systems.")
    mode, rate = request.get("ThroughputMode", "bursting"), request.get("ProvisionedThroughputInMibps")
    _check_throughput(mode, rate)
    if request.get("KmsKeyId") and not request.get("Encrypted"):
        raise AwsError("BadRequest", "KmsKeyId requires Encrypted to be true.")
    identifier, now = request.cloud.new_id("fs"), request.cloud.now()
    doc: Doc = {
        "OwnerId": request.owner,
        "CreationToken": token,
        "FileSystemId": identifier,
        "FileSystemArn": request.arn(f"file-system/{identifier}", "elasticfilesystem"),
        "CreationTime": stamp(now),
        "SizeInBytes": {"Value": 6144},
        "PerformanceMode": request.get("PerformanceMode", "generalPurpose"),
        "Encrypted": bool(request.get("Encrypted")),
        "ThroughputMode": mode,
        "Tags": list(request.get("Tags") or ()),
        "FileSystemProtection": {"ReplicationOverwriteProtection": "ENABLED"},
        "_since": now,
    }
    if rate is not None:
        doc["ProvisionedThroughputInMibps"] = rate
    if doc["Encrypted"]:
        key = f"arn:aws:kms:{request.region}:{request.owner}:key/aws-elasticfilesystem"
        doc["KmsKeyId"] = request.get("KmsKeyId") or key
    request.add(identifier, FILE_SYSTEM, doc, token)
    return _shown(request, doc)


@action("DescribeFileSystems", "efs")
def describe_file_systems(request: Request) -> Doc:
    token, identifier = request.get("CreationToken"), request.get("FileSystemId")
    if identifier is not None:
        docs = [_file_system(request, identifier)]
    else:
        docs = [doc for _, doc in request.store.each(FILE_SYSTEM, request.region)]
        docs = [doc for doc in docs if token in (None, doc["CreationToken"]) and not _gone(request, doc)]
    return {"FileSystems": [_shown(request, doc) for doc in docs]}


@action("UpdateFileSystem", "efs")
def update_file_system(request: Request) -> Doc:
    doc = _available(request, request["FileSystemId"])
    mode = request.get("ThroughputMode") or doc["ThroughputMode"]
    rate = request.get("ProvisionedThroughputInMibps") if mode == "provisioned" else None
    _check_throughput(mode, rate)
    before, now = doc.get("ProvisionedThroughputInMibps"), request.cloud.now()
    slower = mode == doc["ThroughputMode"] == "provisioned" and (rate or 0) < (before or 0)
    if (slower or mode != doc["ThroughputMode"]) and now - doc.get("_changed", 0.0) < DAY_S:
        raise AwsError(
            "TooManyRequests",
            "You can change the throughput mode or decrease the provisioned throughput once in 24 hours.",
        )
    doc |= {"ThroughputMode": mode, "_changed": now}
    doc.pop("ProvisionedThroughputInMibps", None)
    if rate is not None:
        doc["ProvisionedThroughputInMibps"] = rate
    request.add(doc["FileSystemId"], FILE_SYSTEM, doc)
    return _shown(request, doc)


@action("DeleteFileSystem", "efs")
def delete_file_system(request: Request) -> Doc:
    doc = _file_system(request, request["FileSystemId"])
    if _targets(request, doc["FileSystemId"]):
        raise AwsError(
            "FileSystemInUse", f"File system '{doc['FileSystemId']}' has mount targets and cannot be deleted."
        )
    note_gone(request, f"{doc['FileSystemId']}.efs.{request.region}.amazonaws.com")
    _end(request, doc, FILE_SYSTEM)
    return {}


@action("DescribeLifecycleConfiguration", "efs")
def describe_lifecycle_configuration(request: Request) -> Doc:
    _file_system(request, request["FileSystemId"])
    return {"LifecyclePolicies": []}


@action("CreateMountTarget", "efs")
def create_mount_target(request: Request) -> Doc:
    file_system = _available(request, request["FileSystemId"])
    subnet = request.store.get(request["SubnetId"], "subnet")
    if subnet is None or subnet["_region"] != request.region:
        raise AwsError("SubnetNotFound", f"The subnet ID '{request['SubnetId']}' does not exist")
    vpc = request.thing("vpc", subnet["VpcId"])
    for other in _targets(request, file_system["FileSystemId"]):
        if other["VpcId"] != subnet["VpcId"]:
            raise AwsError(
                "MountTargetConflict",
                "requested subnet for new mount target is not in the same VPC as others",
            )
        if other["AvailabilityZoneName"] == subnet["AvailabilityZone"]:
            raise AwsError("MountTargetConflict", "mount target already exists in this AZ")
    groups = list(request.get("SecurityGroups") or [vpc["_group"]])
    if len(groups) > MOST_GROUPS:
        raise AwsError("SecurityGroupLimitExceeded", f"A mount target has at most {MOST_GROUPS} groups.")
    for each in groups:
        group = request.store.get(each, "security-group")
        if group is None or group["VpcId"] != subnet["VpcId"]:
            raise AwsError("SecurityGroupNotFound", f"The security group '{each}' does not exist")
    if free_addresses(request, subnet) < 1:
        raise AwsError(
            "NoFreeAddressesInSubnet", f"The specified subnet '{subnet['SubnetId']}' has no free addresses."
        )
    identifier = request.cloud.new_id("fsmt")
    interface = make_interface(
        request, subnet, groups, owner=identifier, kind="efs", address=request.get("IpAddress")
    )
    zone = next(each for each in regions()[request.region] if each.name == subnet["AvailabilityZone"])
    doc: Doc = {
        "OwnerId": request.owner,
        "MountTargetId": identifier,
        "FileSystemId": file_system["FileSystemId"],
        "SubnetId": subnet["SubnetId"],
        "IpAddress": interface["PrivateIpAddress"],
        "NetworkInterfaceId": interface["NetworkInterfaceId"],
        "AvailabilityZoneId": zone.id,
        "AvailabilityZoneName": zone.name,
        "VpcId": subnet["VpcId"],
        "_groups": groups,
        "_since": request.cloud.now(),
    }
    request.add(identifier, TARGET, doc)
    return _shown(request, doc)


@action("DescribeMountTargets", "efs")
def describe_mount_targets(request: Request) -> Doc:
    if request.get("MountTargetId") is not None:
        docs = [_target(request, request["MountTargetId"])]
    else:
        docs = _targets(request, _file_system(request, request["FileSystemId"])["FileSystemId"])
    return {"MountTargets": [_shown(request, doc) for doc in docs]}


@action("DescribeMountTargetSecurityGroups", "efs")
def describe_mount_target_security_groups(request: Request) -> Doc:
    return {"SecurityGroups": _target(request, request["MountTargetId"])["_groups"]}


@action("ModifyMountTargetSecurityGroups", "efs")
def modify_mount_target_security_groups(request: Request) -> Doc:
    doc = _target(request, request["MountTargetId"])
    groups = list(request.get("SecurityGroups") or ())
    for each in groups:
        if request.store.get(each, "security-group") is None:
            raise AwsError("SecurityGroupNotFound", f"The security group '{each}' does not exist")
    request.store.unrefer(doc["NetworkInterfaceId"], "group")
    for each in groups:
        request.store.refer(doc["NetworkInterfaceId"], each, "group")
    request.add(doc["MountTargetId"], TARGET, {**doc, "_groups": groups})
    return {}


@action("DeleteMountTarget", "efs")
def delete_mount_target(request: Request) -> Doc:
    doc = _target(request, request["MountTargetId"])
    remove_interface(request, doc["NetworkInterfaceId"])
    _end(request, doc, TARGET)
    return {}


@action("TagResource", "efs")
def tag_resource(request: Request) -> Doc:
    doc = _file_system(request, request["ResourceId"])
    tags = tag_map(doc) | {tag["Key"]: tag["Value"] for tag in request["Tags"]}
    request.add(doc["FileSystemId"], FILE_SYSTEM, {**doc, "Tags": tag_list(tags)})
    return {}


@action("UntagResource", "efs")
def untag_resource(request: Request) -> Doc:
    doc = _file_system(request, request["ResourceId"])
    tags = {key: value for key, value in tag_map(doc).items() if key not in request["TagKeys"]}
    request.add(doc["FileSystemId"], FILE_SYSTEM, {**doc, "Tags": tag_list(tags)})
    return {}


# What time does to them


def state(request: Request, doc: Doc) -> str:
    """`creating`, `available` or `deleting`."""
    if "_ends" in doc:
        return "deleting"
    waits = request.cloud.now() - doc["_since"] < request.cloud.knobs_now().pending_s
    return "creating" if waits else "available"


def _end(request: Request, doc: Doc, kind: str) -> None:
    identifier = doc["FileSystemId"] if kind == FILE_SYSTEM else doc["MountTargetId"]
    lasts = request.cloud.knobs_now().shutting_down_s
    if lasts:
        request.add(identifier, kind, {**doc, "_ends": request.cloud.now() + lasts})
    else:
        request.store.remove(identifier)


def _gone(request: Request, doc: Doc) -> bool:
    return "_ends" in doc and doc["_ends"] <= request.cloud.now()


def _file_system(request: Request, identifier: str) -> Doc:
    """One that is there, by its id or its ARN."""
    doc = request.store.get(identifier.rpartition("/")[2], FILE_SYSTEM)
    if doc is None or doc["_region"] != request.region or _gone(request, doc):
        raise AwsError("FileSystemNotFound", f"File system '{identifier}' does not exist.")
    return doc


def _available(request: Request, identifier: str) -> Doc:
    doc = _file_system(request, identifier)
    if state(request, doc) != "available":
        raise AwsError(
            "IncorrectFileSystemLifeCycleState",
            f"File system '{identifier}' is {state(request, doc)}, not available.",
        )
    return doc


def _target(request: Request, identifier: str) -> Doc:
    doc = request.store.get(identifier, TARGET)
    if doc is None or doc["_region"] != request.region or _gone(request, doc):
        raise AwsError("MountTargetNotFound", f"Mount target '{identifier}' does not exist.")
    return doc


def _targets(request: Request, file_system: str) -> list[Doc]:
    docs = (doc for _, doc in request.store.each(TARGET, request.region))
    return [doc for doc in docs if doc["FileSystemId"] == file_system and not _gone(request, doc)]


def _shown(request: Request, doc: Doc) -> Doc:
    shown = {**public(doc), "LifeCycleState": state(request, doc)}
    if "MountTargetId" not in doc:
        shown["NumberOfMountTargets"] = len(_targets(request, doc["FileSystemId"]))
        name = tag_map(doc).get("Name")
        shown |= {"Name": name} if name else {}
    return shown


def _check_throughput(mode: str, rate: float | None) -> None:
    if mode not in MODES:
        raise AwsError("BadRequest", f"Invalid throughput mode: {mode}")
    if (mode == "provisioned") != (rate is not None):
        raise AwsError(
            "BadRequest", "ProvisionedThroughputInMibps is given with the throughput mode provisioned, only."
        )
    if rate is not None and not 1 <= rate <= FASTEST:
        raise AwsError("ThroughputLimitExceeded", f"Provisioned throughput must be 1 to {FASTEST} MiB/s.")
