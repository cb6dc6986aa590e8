"""FSx for Lustre. Sources: rehearsal/README.md, "File systems"."""

from __future__ import annotations

import hashlib
from typing import Any

from orch.rehearsal.aws.api.actions import Request, action, public, stamp, tag_list, tag_map
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.api.network.addresses import make_interface, remove_interface
from orch.rehearsal.aws.api.network.subnets import free_addresses
from orch.rehearsal.aws.api.storage import note_gone
from orch.rehearsal.store import Doc

FILE_SYSTEM = "fsx-file-system"
LEAST, STEP = 1200, 2400
THROUGHPUTS = (125, 250, 500, 1000)
VERSIONS = ("2.12", "2.15")
SERVERS = 2
"""Network interfaces of a file system here: one of its metadata, one of its data."""
COOL_DOWN_S = 6 * 3600.0
STORAGE_QUOTA = "lustre-persistent-2-storage"


@action("CreateFileSystem", "fsx")
def create_file_system(request: Request) -> Doc:
    if request["FileSystemType"] != "LUSTRE":
        raise AwsError("BadRequest", "The simulated account has file systems of the type LUSTRE only.")
    settings: Doc = request.get("LustreConfiguration") or {}
    size, throughput = request["StorageCapacity"], settings.get("PerUnitStorageThroughput")
    version = request.get("FileSystemTypeVersion", "2.12")
    if settings.get("DeploymentType") != "PERSISTENT_2":
        raise AwsError("BadRequest", "The simulated account has the deployment type PERSISTENT_2 only.")
    if version not in VERSIONS:
        raise AwsError("BadRequest", f"The Lustre version {version} is not supported.")
    _check_throughput(throughput)
    if size != LEAST and (size < STEP or size % STEP):
        raise AwsError(
            "BadRequest",
            f"Invalid storage capacity: {size}. Valid values are 1200, 2400 and multiples of 2400.",
        )
    _check_quota(request, size)
    subnets, groups = list(request["SubnetIds"]), list(request.get("SecurityGroupIds") or ())
    subnet = request.store.get(subnets[0], "subnet") if len(subnets) == 1 else None
    if subnet is None or subnet["_region"] != request.region:
        raise AwsError("InvalidNetworkSettings", f"Invalid subnets: {', '.join(subnets)}. One is required.")
    groups = groups or [request.thing("vpc", subnet["VpcId"])["_group"]]
    for each in groups:
        group = request.store.get(each, "security-group")
        if group is None or group["VpcId"] != subnet["VpcId"]:
            raise AwsError("InvalidNetworkSettings", f"Invalid security group: {each}.")
    if free_addresses(request, subnet) < SERVERS:
        raise AwsError("InvalidNetworkSettings", f"The subnet {subnet['SubnetId']} has too few addresses.")
    identifier, now = request.cloud.new_id("fs"), request.cloud.now()
    interfaces = [
        make_interface(request, subnet, groups, owner=identifier, kind="lustre")["NetworkInterfaceId"]
        for _ in range(SERVERS)
    ]
    key = f"arn:aws:kms:{request.region}:{request.owner}:key/aws-fsx"
    doc: Doc = {
        "OwnerId": request.owner,
        "CreationTime": stamp(now),
        "FileSystemId": identifier,
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": version,
        "StorageCapacity": size,
        "StorageType": request.get("StorageType", "SSD"),
        "VpcId": subnet["VpcId"],
        "SubnetIds": subnets,
        "NetworkInterfaceIds": interfaces,
        "DNSName": f"{identifier}.fsx.{request.region}.amazonaws.com",
        "KmsKeyId": request.get("KmsKeyId") or key,
        "ResourceARN": request.arn(f"file-system/{identifier}", "fsx"),
        "Tags": list(request.get("Tags") or ()),
        "LustreConfiguration": {
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": throughput,
            "MountName": _mount_name(identifier),
            "AutomaticBackupRetentionDays": settings.get("AutomaticBackupRetentionDays", 0),
            "CopyTagsToBackups": False,
            "DataCompressionType": settings.get("DataCompressionType", "NONE"),
            "WeeklyMaintenanceStartTime": settings.get("WeeklyMaintenanceStartTime", "1:00:00"),
        },
        "_since": now,
        "_groups": groups,
    }
    request.add(identifier, FILE_SYSTEM, doc)
    return {"FileSystem": _shown(request, doc)}


@action("DescribeFileSystems", "fsx")
def describe_file_systems(request: Request) -> Doc:
    ids = request.get("FileSystemIds")
    docs = [_file_system(request, each) for each in ids or ()]
    if not ids:
        docs = [doc for _, doc in request.store.each(FILE_SYSTEM, request.region) if not _gone(request, doc)]
    return {"FileSystems": [_shown(request, doc) for doc in docs]}


@action("UpdateFileSystem", "fsx")
def update_file_system(request: Request) -> Doc:
    doc = _file_system(request, request["FileSystemId"])
    if _state(request, doc) != "AVAILABLE":
        raise AwsError("BadRequest", f"File system {doc['FileSystemId']} is {_state(request, doc)}.")
    settings = {**doc["LustreConfiguration"], **(request.get("LustreConfiguration") or {})}
    size, now = request.get("StorageCapacity"), request.cloud.now()
    throughput = settings["PerUnitStorageThroughput"]
    _check_throughput(throughput)
    changes = {"LustreConfiguration": settings}
    if size is not None:
        if size % STEP or size <= doc["StorageCapacity"]:
            raise AwsError(
                "BadRequest",
                f"Invalid storage capacity: {size}. It must be a multiple of 2400 GiB, and greater than "
                f"{doc['StorageCapacity']} GiB.",
            )
        if now - doc.get("_grown", -COOL_DOWN_S) < COOL_DOWN_S:
            raise AwsError("BadRequest", "Storage capacity can be increased once in 6 hours.")
        _check_quota(request, size - doc["StorageCapacity"])
        changes |= {"StorageCapacity": size, "_grown": now}
    doc |= changes
    request.add(doc["FileSystemId"], FILE_SYSTEM, doc)
    return {"FileSystem": _shown(request, doc)}


@action("DeleteFileSystem", "fsx")
def delete_file_system(request: Request) -> Doc:
    doc = _file_system(request, request["FileSystemId"])
    if _state(request, doc) == "CREATING":
        raise AwsError("BadRequest", f"File system {doc['FileSystemId']} is CREATING.")
    note_gone(request, doc["DNSName"])
    lasts = request.cloud.knobs_now().shutting_down_s
    for interface in doc["NetworkInterfaceIds"]:
        remove_interface(request, interface)
    if lasts:
        request.add(doc["FileSystemId"], FILE_SYSTEM, {**doc, "_ends": request.cloud.now() + lasts})
    else:
        request.store.remove(doc["FileSystemId"])
    return {"FileSystemId": doc["FileSystemId"], "Lifecycle": "DELETING"}


@action("TagResource", "fsx")
def tag_resource(request: Request) -> Doc:
    doc = _by_arn(request)
    tags = tag_map(doc) | {tag["Key"]: tag["Value"] for tag in request["Tags"]}
    request.add(doc["FileSystemId"], FILE_SYSTEM, {**doc, "Tags": tag_list(tags)})
    return {}


@action("UntagResource", "fsx")
def untag_resource(request: Request) -> Doc:
    doc = _by_arn(request)
    tags = {key: value for key, value in tag_map(doc).items() if key not in request["TagKeys"]}
    request.add(doc["FileSystemId"], FILE_SYSTEM, {**doc, "Tags": tag_list(tags)})
    return {}


def _by_arn(request: Request) -> Doc:
    doc = request.store.get(request["ResourceARN"].rpartition("/")[2], FILE_SYSTEM)
    if doc is None or _gone(request, doc):
        raise AwsError("ResourceNotFound", f"The resource {request['ResourceARN']} does not exist.")
    return doc


def _file_system(request: Request, identifier: str) -> Doc:
    doc = request.store.get(identifier, FILE_SYSTEM)
    if doc is None or doc["_region"] != request.region or _gone(request, doc):
        raise AwsError("FileSystemNotFound", f"File system '{identifier}' does not exist.")
    return doc


def _state(request: Request, doc: Doc) -> str:
    if "_ends" in doc:
        return "DELETING"
    waits = request.cloud.now() - doc["_since"] < request.cloud.knobs_now().pending_s
    return "CREATING" if waits else "AVAILABLE"


def _gone(request: Request, doc: Doc) -> bool:
    return "_ends" in doc and doc["_ends"] <= request.cloud.now()


def _shown(request: Request, doc: Doc) -> Doc:
    return {**public(doc), "Lifecycle": _state(request, doc)}


def _mount_name(identifier: str) -> str:
    """Eight letters."""
    digest = hashlib.sha256(identifier.encode()).digest()
    return "".join(chr(ord("a") + byte % 26) for byte in digest[:8])


def _check_throughput(throughput: Any) -> None:
    if throughput not in THROUGHPUTS:
        raise AwsError(
            "InvalidPerUnitStorageThroughput",
            f"Invalid PerUnitStorageThroughput: {throughput}. Valid values are 125, 250, 500 and 1000.",
        )


def _check_quota(request: Request, more: int) -> None:
    docs = (doc for _, doc in request.store.each(FILE_SYSTEM, request.region))
    used = sum(doc["StorageCapacity"] for doc in docs if not _gone(request, doc))
    if used + more > request.cloud.quota(STORAGE_QUOTA):
        raise AwsError("ServiceLimitExceeded", "You have reached the limit of storage capacity for Lustre.")
