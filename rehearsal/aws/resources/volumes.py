"""EBS volumes as Pulumi resources."""

from __future__ import annotations

from collections.abc import Mapping

from orch.rehearsal.aws.resources.kinds import Api, Kind, Listed, Props, specification
from orch.rehearsal.store import Doc


class Volume(Listed):
    label = "EBS Volume"
    name = "Volume"
    id_name = "VolumeId"
    gone = ("InvalidVolume.NotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateVolume",
            AvailabilityZone=inputs["availabilityZone"],
            Encrypted=inputs.get("encrypted"),
            KmsKeyId=inputs.get("kmsKeyId"),
            SnapshotId=inputs.get("snapshotId"),
            Size=inputs.get("size"),
            VolumeType=inputs.get("type"),
            Iops=inputs.get("iops"),
            Throughput=inputs.get("throughput"),
            TagSpecifications=specification("volume", tags),
        )
        return str(response["VolumeId"])

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "arn": f"arn:aws:ec2:{api.region}:{api.owner}:volume/{resource_id}",
            "availabilityZone": doc["AvailabilityZone"],
            "createTime": doc.get("CreateTime", ""),
            "encrypted": doc["Encrypted"],
            "iops": doc.get("Iops") or 0,
            "kmsKeyId": doc.get("KmsKeyId") or "",
            "multiAttachEnabled": bool(doc.get("MultiAttachEnabled")),
            "outpostArn": "",
            "size": doc["Size"],
            "snapshotId": doc.get("SnapshotId") or "",
            "throughput": doc.get("Throughput") or 0,
            "type": doc["VolumeType"],
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if changed & {"size", "type", "iops", "throughput"}:
            new = {key: value for key, value in inputs.items() if key in changed}
            api(
                "ModifyVolume",
                VolumeId=resource_id,
                Size=new.get("size"),
                VolumeType=new.get("type"),
                Iops=new.get("iops"),
                Throughput=new.get("throughput"),
            )


TYPES: Mapping[str, Kind] = {"aws:ebs/volume:Volume": Volume()}
