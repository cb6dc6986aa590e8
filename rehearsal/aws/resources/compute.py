"""Placement groups, reservations, templates and key pairs as Pulumi resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orch.rehearsal.aws.resources.kinds import (
    Api,
    Kind,
    Listed,
    Props,
    camel,
    first,
    pascal,
    specification,
    truth,
)
from orch.rehearsal.store import Doc


class PlacementGroup(Listed):
    label = "EC2 Placement Group"
    name = "PlacementGroup"
    id_name = "GroupName"
    gone = ("InvalidPlacementGroup.Unknown",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        api(
            "CreatePlacementGroup",
            GroupName=inputs["name"],
            Strategy=inputs["strategy"],
            PartitionCount=inputs.get("partitionCount"),
            SpreadLevel=inputs.get("spreadLevel"),
            TagSpecifications=specification("placement-group", tags),
        )
        return inputs["name"]

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "arn": doc["GroupArn"],
            "name": doc["GroupName"],
            "placementGroupId": doc["GroupId"],
            "strategy": doc["Strategy"],
            "partitionCount": doc.get("PartitionCount", 0),
            "spreadLevel": doc.get("SpreadLevel", ""),
            "TagsOf": doc["GroupId"],
        }


class CapacityReservation(Listed):
    label = "EC2 Capacity Reservation"
    name = "CapacityReservation"
    id_name = "CapacityReservationId"
    gone = ("InvalidCapacityReservationId.NotFound",)

    def find(self, api: Api, resource_id: str) -> Doc | None:
        doc = super().find(api, resource_id)
        return None if doc is None or doc["State"] in {"cancelled", "expired"} else doc

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateCapacityReservation",
            **pascal(
                {key: value for key, value in inputs.items() if key not in {"tags", "region", "tagsAll"}}
            ),
            TagSpecifications=specification("capacity-reservation", tags),
        )
        return response["CapacityReservation"]["CapacityReservationId"]

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "arn": doc["CapacityReservationArn"],
            "ownerId": doc["OwnerId"],
            "availabilityZone": doc["AvailabilityZone"],
            "ebsOptimized": doc["EbsOptimized"],
            "ephemeralStorage": doc["EphemeralStorage"],
            "endDate": doc.get("EndDate", ""),
            "endDateType": doc["EndDateType"],
            "instanceCount": doc["TotalInstanceCount"],
            "instanceMatchCriteria": doc["InstanceMatchCriteria"],
            "instancePlatform": doc["InstancePlatform"],
            "instanceType": doc["InstanceType"],
            "placementGroupArn": doc.get("PlacementGroupArn", ""),
            "tenancy": doc["Tenancy"],
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        api(
            "ModifyCapacityReservation",
            CapacityReservationId=resource_id,
            InstanceCount=inputs.get("instanceCount"),
            EndDateType=inputs.get("endDateType"),
            EndDate=inputs.get("endDate"),
        )

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed("CancelCapacityReservation", self.gone, CapacityReservationId=resource_id)


# -- launch templates --------------------------------------------------------------------------------------

DATA = [
    "blockDeviceMappings",
    "capacityReservationSpecification",
    "cpuOptions",
    "creditSpecification",
    "disableApiStop",
    "disableApiTermination",
    "ebsOptimized",
    "enclaveOptions",
    "hibernationOptions",
    "iamInstanceProfile",
    "imageId",
    "instanceInitiatedShutdownBehavior",
    "instanceMarketOptions",
    "instanceType",
    "kernelId",
    "keyName",
    "maintenanceOptions",
    "metadataOptions",
    "monitoring",
    "networkInterfaces",
    "networkPerformanceOptions",
    "placement",
    "privateDnsNameOptions",
    "ramDiskId",
    "tagSpecifications",
    "userData",
    "vpcSecurityGroupIds",
]

RENAMED = {"vpcSecurityGroupIds": "SecurityGroupIds"}
IN_INTERFACES = {"securityGroups": "Groups"}
TRUTHS = {
    "associatePublicIpAddress",
    "deleteOnTermination",
    "encrypted",
    "ebsOptimized",
    "associateCarrierIpAddress",
}


def _truths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: truth(v) if k in TRUTHS else _truths(v) for k, v in value.items()}
    return [_truths(item) for item in value] if isinstance(value, list) else value


def template_data(inputs: Props) -> Doc:
    """LaunchTemplateData of a launch template's properties."""
    data: Doc = {}
    for key in DATA:
        value = _truths(inputs.get(key))
        if value in (None, "", [], {}):
            continue
        if key == "ebsOptimized":
            value = truth(value)
        if key == "tagSpecifications":
            data["TagSpecifications"] = [
                {
                    "ResourceType": one.get("resourceType"),
                    "Tags": [{"Key": k, "Value": v} for k, v in sorted((one.get("tags") or {}).items())],
                }
                for one in value
            ]
        elif key == "networkInterfaces":
            data["NetworkInterfaces"] = pascal(value, IN_INTERFACES)
        else:
            data[RENAMED.get(key, key[:1].upper() + key[1:])] = pascal(value)
    return data


def _properties(data: Doc) -> Props:
    """The other way round."""
    properties: Props = {}
    for key in DATA:
        name = RENAMED.get(key, key[:1].upper() + key[1:])
        if name not in data:
            continue
        value = data[name]
        if key == "tagSpecifications":
            properties[key] = [
                {
                    "resourceType": one["ResourceType"],
                    "tags": {tag["Key"]: tag["Value"] for tag in one["Tags"]},
                }
                for one in value
            ]
        else:
            properties[key] = camel(value, IN_INTERFACES if key == "networkInterfaces" else None)
    return properties


class LaunchTemplate(Listed):
    label = "EC2 Launch Template"
    name = "LaunchTemplate"
    id_name = "LaunchTemplateId"
    gone = ("InvalidLaunchTemplateId.NotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateLaunchTemplate",
            LaunchTemplateName=inputs["name"],
            LaunchTemplateData=template_data(inputs),
            VersionDescription=inputs.get("description"),
            TagSpecifications=specification("launch-template", tags),
        )
        return response["LaunchTemplate"]["LaunchTemplateId"]

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        versions = api("DescribeLaunchTemplateVersions", LaunchTemplateId=resource_id, Versions=["$Latest"])
        latest = versions["LaunchTemplateVersions"][0]
        defaults = dict.fromkeys(DATA)
        return {
            **defaults,
            **_properties(latest["LaunchTemplateData"]),
            "arn": f"arn:aws:ec2:{api.region}:{api.owner}:launch-template/{resource_id}",
            "name": doc["LaunchTemplateName"],
            "description": latest.get("VersionDescription"),
            "defaultVersion": doc["DefaultVersionNumber"],
            "latestVersion": doc["LatestVersionNumber"],
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        number: Any = None
        if changed & {*DATA, "description"}:
            response = api(
                "CreateLaunchTemplateVersion",
                LaunchTemplateId=resource_id,
                LaunchTemplateData=template_data(inputs),
                VersionDescription=inputs.get("description"),
            )
            number = response["LaunchTemplateVersion"]["VersionNumber"]
        default_version = inputs.get("defaultVersion") if "defaultVersion" in changed else None
        if inputs.get("updateDefaultVersion") and number:
            default_version = number
        if default_version:
            api("ModifyLaunchTemplate", LaunchTemplateId=resource_id, DefaultVersion=str(default_version))


class KeyPair(Listed):
    label = "EC2 Key Pair"
    name = "KeyPair"
    id_name = "KeyName"
    gone = ("InvalidKeyPair.NotFound",)

    def find(self, api: Api, resource_id: str) -> Doc | None:
        names = [resource_id]
        return first(api, "DescribeKeyPairs", "KeyPairs", self.gone, KeyNames=names, IncludePublicKey=True)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        api(
            "ImportKeyPair",
            KeyName=inputs["keyName"],
            PublicKeyMaterial=inputs["publicKey"],
            TagSpecifications=specification("key-pair", tags),
        )
        return inputs["keyName"]

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "arn": f"arn:aws:ec2:{api.region}:{api.owner}:key-pair/{resource_id}",
            "fingerprint": doc["KeyFingerprint"],
            "keyName": doc["KeyName"],
            "keyPairId": doc["KeyPairId"],
            "keyType": doc["KeyType"],
            "publicKey": doc["PublicKey"],
            "TagsOf": doc["KeyPairId"],
        }

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api("DeleteKeyPair", KeyName=resource_id)


class Tag(Kind):
    """One tag of something made elsewhere."""

    label = "EC2 Tag"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        tag = {"Key": inputs["key"], "Value": inputs["value"]}
        api("CreateTags", Resources=[inputs["resourceId"]], Tags=[tag])
        return f"{inputs['resourceId']},{inputs['key']}"

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        resource, key = resource_id.split(",", 1)
        filters = [{"Name": "resource-id", "Values": [resource]}, {"Name": "key", "Values": [key]}]
        doc = first(api, "DescribeTags", "Tags", (), Filters=filters)
        return doc and {"resourceId": resource, "key": key, "value": doc["Value"]}

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        self.create(api, inputs, {})

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        resource, key = resource_id.split(",", 1)
        not_found = ("InvalidID", "InvalidInstanceID.NotFound")
        api.removed("DeleteTags", not_found, Resources=[resource], Tags=[{"Key": key}])


TYPES: Mapping[str, Kind] = {
    "aws:ec2/placementGroup:PlacementGroup": PlacementGroup(),
    "aws:ec2/capacityReservation:CapacityReservation": CapacityReservation(),
    "aws:ec2/launchTemplate:LaunchTemplate": LaunchTemplate(),
    "aws:ec2/keyPair:KeyPair": KeyPair(),
    "aws:ec2/tag:Tag": Tag(),
}
