"""EFS and FSx for Lustre as Pulumi resources. As the real provider does, each is waited for."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from orch.rehearsal.aws.resources.kinds import Api, ApiFailure, Kind, Props, tags_in
from orch.rehearsal.store import Doc

POLL_S = 0.1
_GONE = ("FileSystemNotFound", "MountTargetNotFound")


def _listed(tags: Mapping[str, str]) -> list[Doc] | None:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())] or None


def _one(api: Api, service: str, action: str, key: str, **params: Any) -> Doc | None:
    """The one document that a call answers; None where it is not there."""
    try:
        return api(action, service=service, **params)[key][0]
    except ApiFailure as failure:
        if failure.code in _GONE:
            return None
        raise


class EfsFileSystem(Kind):
    label = "EFS File System"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateFileSystem",
            service="efs",
            CreationToken=inputs.get("creationToken") or f"terraform-{uuid.uuid4().hex}",
            Encrypted=inputs.get("encrypted"),
            KmsKeyId=inputs.get("kmsKeyId"),
            PerformanceMode=inputs.get("performanceMode"),
            ThroughputMode=inputs.get("throughputMode"),
            ProvisionedThroughputInMibps=inputs.get("provisionedThroughputInMibps"),
            Tags=_listed(tags),
        )
        identifier = str(response["FileSystemId"])
        while (doc := self._doc(api, identifier)) is not None and doc["LifeCycleState"] == "creating":
            time.sleep(POLL_S)
        return identifier

    def _doc(self, api: Api, identifier: str) -> Doc | None:
        return _one(api, "efs", "DescribeFileSystems", "FileSystems", FileSystemId=identifier)

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = self._doc(api, resource_id)
        if doc is None:
            return None
        return {
            "arn": doc["FileSystemArn"],
            "availabilityZoneId": "",
            "availabilityZoneName": "",
            "creationToken": doc["CreationToken"],
            "dnsName": f"{resource_id}.efs.{api.region}.amazonaws.com",
            "encrypted": doc["Encrypted"],
            "kmsKeyId": doc.get("KmsKeyId") or "",
            "name": doc.get("Name") or "",
            "numberOfMountTargets": doc["NumberOfMountTargets"],
            "ownerId": doc["OwnerId"],
            "performanceMode": doc["PerformanceMode"],
            "provisionedThroughputInMibps": doc.get("ProvisionedThroughputInMibps") or 0,
            "throughputMode": doc["ThroughputMode"],
            "Tags": tags_in(doc),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if changed & {"throughputMode", "provisionedThroughputInMibps"}:
            mode = inputs.get("throughputMode")
            rate = inputs.get("provisionedThroughputInMibps") if mode == "provisioned" else None
            api(
                "UpdateFileSystem",
                service="efs",
                FileSystemId=resource_id,
                ThroughputMode=mode,
                ProvisionedThroughputInMibps=rate,
            )

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed("DeleteFileSystem", _GONE, service="efs", FileSystemId=resource_id)
        while self._doc(api, resource_id) is not None:
            time.sleep(POLL_S)


class EfsMountTarget(Kind):
    label = "EFS Mount Target"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateMountTarget",
            service="efs",
            FileSystemId=inputs["fileSystemId"],
            SubnetId=inputs["subnetId"],
            IpAddress=inputs.get("ipAddress"),
            SecurityGroups=inputs.get("securityGroups"),
        )
        identifier = str(response["MountTargetId"])
        while (doc := self._doc(api, identifier)) is not None and doc["LifeCycleState"] == "creating":
            time.sleep(POLL_S)
        return identifier

    def _doc(self, api: Api, identifier: str) -> Doc | None:
        return _one(api, "efs", "DescribeMountTargets", "MountTargets", MountTargetId=identifier)

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = self._doc(api, resource_id)
        if doc is None:
            return None
        groups = api("DescribeMountTargetSecurityGroups", service="efs", MountTargetId=resource_id)
        file_system, zone = doc["FileSystemId"], doc["AvailabilityZoneName"]
        host = f"{file_system}.efs.{api.region}.amazonaws.com"
        return {
            "availabilityZoneId": doc["AvailabilityZoneId"],
            "availabilityZoneName": zone,
            "dnsName": host,
            "fileSystemArn": (
                f"arn:aws:elasticfilesystem:{api.region}:{doc['OwnerId']}:file-system/{file_system}"
            ),
            "fileSystemId": file_system,
            "ipAddress": doc["IpAddress"],
            "ipAddressType": "IPV4_ONLY",
            "ipv6Address": "",
            "mountTargetDnsName": f"{zone}.{host}",
            "networkInterfaceId": doc["NetworkInterfaceId"],
            "ownerId": doc["OwnerId"],
            "securityGroups": groups["SecurityGroups"],
            "subnetId": doc["SubnetId"],
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if "securityGroups" in changed:
            api(
                "ModifyMountTargetSecurityGroups",
                service="efs",
                MountTargetId=resource_id,
                SecurityGroups=inputs.get("securityGroups"),
            )

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed("DeleteMountTarget", _GONE, service="efs", MountTargetId=resource_id)
        while self._doc(api, resource_id) is not None:
            time.sleep(POLL_S)


class LustreFileSystem(Kind):
    label = "FSx for Lustre File System"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        settings = {
            "DeploymentType": inputs.get("deploymentType"),
            "PerUnitStorageThroughput": inputs.get("perUnitStorageThroughput"),
            "DataCompressionType": inputs.get("dataCompressionType"),
            "AutomaticBackupRetentionDays": inputs.get("automaticBackupRetentionDays"),
            "WeeklyMaintenanceStartTime": inputs.get("weeklyMaintenanceStartTime"),
        }
        response = api(
            "CreateFileSystem",
            service="fsx",
            FileSystemType="LUSTRE",
            FileSystemTypeVersion=inputs.get("fileSystemTypeVersion"),
            StorageCapacity=inputs.get("storageCapacity"),
            StorageType=inputs.get("storageType"),
            SubnetIds=[inputs["subnetIds"]],
            SecurityGroupIds=inputs.get("securityGroupIds"),
            KmsKeyId=inputs.get("kmsKeyId"),
            LustreConfiguration={key: value for key, value in settings.items() if value is not None},
            Tags=_listed(tags),
        )
        identifier = str(response["FileSystem"]["FileSystemId"])
        while (doc := self._doc(api, identifier)) is not None and doc["Lifecycle"] == "CREATING":
            time.sleep(POLL_S)
        return identifier

    def _doc(self, api: Api, identifier: str) -> Doc | None:
        return _one(api, "fsx", "DescribeFileSystems", "FileSystems", FileSystemIds=[identifier])

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = self._doc(api, resource_id)
        if doc is None:
            return None
        settings = doc["LustreConfiguration"]
        return {
            "arn": doc["ResourceARN"],
            "automaticBackupRetentionDays": settings["AutomaticBackupRetentionDays"],
            "copyTagsToBackups": settings["CopyTagsToBackups"],
            "dataCompressionType": settings["DataCompressionType"],
            "deploymentType": settings["DeploymentType"],
            "dnsName": doc["DNSName"],
            "fileSystemTypeVersion": doc["FileSystemTypeVersion"],
            "kmsKeyId": doc["KmsKeyId"],
            "mountName": settings["MountName"],
            "networkInterfaceIds": doc["NetworkInterfaceIds"],
            "ownerId": doc["OwnerId"],
            "perUnitStorageThroughput": settings["PerUnitStorageThroughput"],
            "storageCapacity": doc["StorageCapacity"],
            "storageType": doc["StorageType"],
            "subnetIds": doc["SubnetIds"][0],
            "vpcId": doc["VpcId"],
            "weeklyMaintenanceStartTime": settings["WeeklyMaintenanceStartTime"],
            "Tags": tags_in(doc),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        settings = {}
        if "perUnitStorageThroughput" in changed:
            settings["PerUnitStorageThroughput"] = inputs.get("perUnitStorageThroughput")
        size = inputs.get("storageCapacity") if "storageCapacity" in changed else None
        if settings or size is not None:
            api(
                "UpdateFileSystem",
                service="fsx",
                FileSystemId=resource_id,
                StorageCapacity=size,
                LustreConfiguration=settings or None,
            )

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed("DeleteFileSystem", _GONE, service="fsx", FileSystemId=resource_id)
        while self._doc(api, resource_id) is not None:
            time.sleep(POLL_S)


TYPES: Mapping[str, Kind] = {
    "aws:efs/fileSystem:FileSystem": EfsFileSystem(),
    "aws:efs/mountTarget:MountTarget": EfsMountTarget(),
    "aws:fsx/lustreFileSystem:LustreFileSystem": LustreFileSystem(),
}
