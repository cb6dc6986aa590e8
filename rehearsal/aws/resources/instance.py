"""`aws:ec2/instance:Instance`: launched, waited for until it runs, changed and terminated."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any

from orch.rehearsal.aws.resources.kinds import Api, ApiFailure, Kind, Props, camel, encoded, pascal, tags_in
from orch.rehearsal.store import Doc

POLL_S = 0.05


class Instance(Kind):
    label = "EC2 Instance"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api("RunInstances", **self._launch(api, inputs, tags))
        instance = response["Instances"][0]["InstanceId"]
        self._wait(api, instance, {"running"})
        if inputs.get("sourceDestCheck") is False:
            api("ModifyInstanceAttribute", InstanceId=instance, SourceDestCheck={"Value": False})
        return instance

    def _launch(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> Doc:
        placement = {
            "AvailabilityZone": inputs.get("availabilityZone"),
            "GroupName": inputs.get("placementGroup"),
            "GroupId": inputs.get("placementGroupId"),
            "Tenancy": inputs.get("tenancy"),
        }
        template = inputs.get("launchTemplate")
        params: Doc = {
            "MinCount": 1,
            "MaxCount": 1,
            "ImageId": inputs.get("ami"),
            "InstanceType": inputs.get("instanceType"),
            "KeyName": inputs.get("keyName"),
            "Placement": {key: value for key, value in placement.items() if value} or None,
            "LaunchTemplate": template
            and {
                "LaunchTemplateId": template.get("id"),
                "LaunchTemplateName": None if template.get("id") else template.get("name"),
                "Version": str(template.get("version", "$Default")),
            },
            "CapacityReservationSpecification": pascal(inputs.get("capacityReservationSpecification")),
            "InstanceMarketOptions": pascal(inputs.get("instanceMarketOptions")),
            "MetadataOptions": pascal(inputs.get("metadataOptions")),
            "CreditSpecification": pascal(inputs.get("creditSpecification")),
            "CpuOptions": pascal(inputs.get("cpuOptions")),
            "EbsOptimized": inputs.get("ebsOptimized"),
            "Monitoring": {"Enabled": inputs["monitoring"]} if inputs.get("monitoring") is not None else None,
            "DisableApiTermination": inputs.get("disableApiTermination"),
            "InstanceInitiatedShutdownBehavior": inputs.get("instanceInitiatedShutdownBehavior"),
            "IamInstanceProfile": {"Name": inputs["iamInstanceProfile"]}
            if inputs.get("iamInstanceProfile")
            else None,
            "UserData": encoded(inputs["userData"])
            if inputs.get("userData")
            else inputs.get("userDataBase64"),
            "BlockDeviceMappings": self._disks(api, inputs) or None,
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in sorted(values.items())]}
                for kind, values in (("instance", dict(tags)), ("volume", inputs.get("volumeTags") or {}))
                if values
            ]
            or None,
        }
        return {**params, **self._network(inputs)}

    def _network(self, inputs: Props) -> Doc:
        groups = inputs.get("vpcSecurityGroupIds") or None
        public = inputs.get("associatePublicIpAddress")
        if public is not None and inputs.get("subnetId"):
            return {
                "NetworkInterfaces": [
                    {
                        "DeviceIndex": 0,
                        "SubnetId": inputs["subnetId"],
                        "AssociatePublicIpAddress": public,
                        **({"Groups": groups} if groups else {}),
                        **({"PrivateIpAddress": inputs["privateIp"]} if inputs.get("privateIp") else {}),
                    }
                ]
            }
        return {
            "SubnetId": inputs.get("subnetId"),
            "SecurityGroupIds": groups,
            "PrivateIpAddress": inputs.get("privateIp"),
        }

    def _disks(self, api: Api, inputs: Props) -> list[Doc]:
        mappings = []
        root = inputs.get("rootBlockDevice")
        if root:
            image = api("DescribeImages", ImageIds=[inputs["ami"]])["Images"][0] if inputs.get("ami") else {}
            settings = {
                k: v for k, v in root.items() if k not in {"deviceName", "tags", "tagsAll", "volumeId"}
            }
            mappings.append({"DeviceName": image.get("RootDeviceName", "/dev/sda1"), "Ebs": pascal(settings)})
        for disk in inputs.get("ebsBlockDevices") or ():
            settings = {
                k: v for k, v in disk.items() if k not in {"deviceName", "tags", "tagsAll", "volumeId"}
            }
            mappings.append({"DeviceName": disk["deviceName"], "Ebs": pascal(settings)})
        return mappings

    def _find(self, api: Api, instance: str) -> Doc | None:
        try:
            reservations = api("DescribeInstances", InstanceIds=[instance])["Reservations"]
        except ApiFailure as failure:
            if failure.code == "InvalidInstanceID.NotFound":
                return None
            raise
        doc = reservations[0]["Instances"][0]
        return None if doc["State"]["Name"] == "terminated" else doc

    def _wait(self, api: Api, instance: str, states: set[str]) -> None:
        pause = POLL_S
        while True:
            doc = self._find(api, instance)
            if doc is None or doc["State"]["Name"] in states:
                return
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    # -- reading
    # ----------------------------------------------------------------------------------------------

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = self._find(api, resource_id)
        if doc is None:
            return None
        groups = [group["GroupId"] for group in doc["SecurityGroups"]]
        primary = next(
            one
            for one in doc["NetworkInterfaces"]
            if (one["Attachment"].get("NetworkCardIndex", 0), one["Attachment"]["DeviceIndex"]) == (0, 0)
        )
        placement = doc["Placement"]
        outputs: Props = {
            "ami": doc["ImageId"],
            "arn": f"arn:aws:ec2:{api.region}:{api.owner}:instance/{resource_id}",
            "associatePublicIpAddress": bool(doc.get("PublicIpAddress")),
            "availabilityZone": placement["AvailabilityZone"],
            "cpuOptions": camel(doc["CpuOptions"]),
            "disableApiStop": False,
            "ebsOptimized": doc["EbsOptimized"],
            "hibernation": False,
            "iamInstanceProfile": str((doc.get("IamInstanceProfile") or {}).get("Arn", "")).rpartition("/")[
                2
            ],
            "instanceLifecycle": doc.get("InstanceLifecycle", ""),
            "instanceState": doc["State"]["Name"],
            "instanceType": doc["InstanceType"],
            "ipv6Addresses": [],
            "keyName": doc.get("KeyName", ""),
            "metadataOptions": {k: v for k, v in camel(doc["MetadataOptions"]).items() if k != "state"},
            "monitoring": doc["Monitoring"]["State"] == "enabled",
            "outpostArn": "",
            "passwordData": "",
            "placementGroup": placement.get("GroupName", ""),
            "placementGroupId": placement.get("GroupId", ""),
            "placementPartitionNumber": 0,
            "primaryNetworkInterfaceId": primary["NetworkInterfaceId"],
            "privateDns": doc["PrivateDnsName"],
            "privateIp": doc["PrivateIpAddress"],
            "publicDns": doc["PublicDnsName"],
            "publicIp": doc.get("PublicIpAddress", ""),
            "secondaryPrivateIps": [],
            "securityGroups": [],
            "sourceDestCheck": doc["SourceDestCheck"],
            "spotInstanceRequestId": doc.get("SpotInstanceRequestId", ""),
            "subnetId": doc["SubnetId"],
            "tenancy": placement["Tenancy"],
            "vpcSecurityGroupIds": groups,
            "capacityReservationSpecification": camel(doc["CapacityReservationSpecification"]),
            "Tags": tags_in(doc),
        }
        outputs |= self._volumes(api, doc, state)
        outputs |= self._template(api, doc, state)
        outputs |= self._user_data(api, resource_id, state)
        if (
            state.get("associatePublicIpAddress") is not None
            and state.get("associatePublicIpAddress") is not True
        ):
            # An Elastic IP address that came later is no difference.
            outputs["associatePublicIpAddress"] = state["associatePublicIpAddress"]
        return outputs

    def _volumes(self, api: Api, doc: Doc, state: Props) -> Props:
        ids = {one["DeviceName"]: one["Ebs"] for one in doc["BlockDeviceMappings"]}
        volumes = api("DescribeVolumes", VolumeIds=[one["VolumeId"] for one in ids.values()])["Volumes"]
        by_id = {one["VolumeId"]: one for one in volumes}

        def shown(device: str) -> Props:
            ebs = ids[device]
            volume = by_id[ebs["VolumeId"]]
            return {
                "deviceName": device,
                "volumeId": volume["VolumeId"],
                "volumeSize": volume["Size"],
                "volumeType": volume["VolumeType"],
                "iops": volume["Iops"],
                "throughput": volume["Throughput"],
                "encrypted": volume["Encrypted"],
                "kmsKeyId": volume.get("KmsKeyId") or "",
                "deleteOnTermination": ebs["DeleteOnTermination"],
            }

        root = doc["RootDeviceName"]
        outputs: Props = {
            "rootBlockDevice": shown(root),
            "ebsBlockDevices": [shown(device) for device in ids if device != root],
        }
        if state.get("volumeTags"):
            outputs["volumeTags"] = tags_in(by_id[ids[root]["VolumeId"]])
        return outputs

    def _template(self, api: Api, doc: Doc, state: Props) -> Props:
        """The launch template as the program names its version, unless that version is another one by now."""
        tags = {tag["Key"]: tag["Value"] for tag in doc["Tags"]}
        template = tags.get("aws:ec2launchtemplate:id")
        reference: Any = state.get("launchTemplate") or {}
        if not template:
            return {}
        version = tags["aws:ec2launchtemplate:version"]
        if reference.get("version") in {"$Latest", "$Default"}:
            key = "LatestVersionNumber" if reference["version"] == "$Latest" else "DefaultVersionNumber"
            description = api("DescribeLaunchTemplates", LaunchTemplateIds=[template])["LaunchTemplates"][0]
            if str(description[key]) == version:
                version = reference["version"]
        name = reference.get("name")
        if not name:
            try:
                description = api("DescribeLaunchTemplates", LaunchTemplateIds=[template])["LaunchTemplates"][
                    0
                ]
                name = description["LaunchTemplateName"]
            except ApiFailure:
                name = ""
        return {"launchTemplate": {"id": template, "name": name, "version": version}}

    def _user_data(self, api: Api, instance: str, state: Props) -> Props:
        """As the state has it: encoded or, also where a launch template gave it, as text.

        Bytes that are no text do not survive that (hashicorp/terraform-provider-aws#42078, #48793).
        """
        response = api("DescribeInstanceAttribute", InstanceId=instance, Attribute="userData")
        value = (response.get("UserData") or {}).get("Value") or ""
        if state.get("userDataBase64"):
            return {"userDataBase64": value}
        return {"userData": base64.b64decode(value).decode(errors="replace")} if value else {}

    # -- changing
    # ---------------------------------------------------------------------------------------------

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        def modify(**values: Any) -> None:
            api("ModifyInstanceAttribute", InstanceId=resource_id, **values)

        if "vpcSecurityGroupIds" in changed:
            modify(Groups=inputs["vpcSecurityGroupIds"])
        if "disableApiTermination" in changed:
            modify(DisableApiTermination={"Value": bool(inputs.get("disableApiTermination"))})
        if "sourceDestCheck" in changed:
            modify(SourceDestCheck={"Value": bool(inputs.get("sourceDestCheck"))})
        if "instanceInitiatedShutdownBehavior" in changed:
            modify(InstanceInitiatedShutdownBehavior={"Value": inputs["instanceInitiatedShutdownBehavior"]})
        if "metadataOptions" in changed:
            api("ModifyInstanceMetadataOptions", InstanceId=resource_id, **pascal(inputs["metadataOptions"]))
        if "rootBlockDevice" in changed:
            disk = inputs["rootBlockDevice"]
            api(
                "ModifyVolume",
                VolumeId=state["rootBlockDevice"]["volumeId"],
                Size=disk.get("volumeSize"),
                VolumeType=disk.get("volumeType"),
                Iops=disk.get("iops"),
                Throughput=disk.get("throughput"),
            )
        # These want the instance stopped; the provider stops it and starts it again.
        stopped: Doc = {}
        if "instanceType" in changed:
            stopped["InstanceType"] = {"Value": inputs["instanceType"]}
        if "userData" in changed:
            stopped["UserData"] = {"Value": encoded(inputs.get("userData") or "")}
        if "userDataBase64" in changed:
            stopped["UserData"] = {"Value": inputs.get("userDataBase64") or ""}
        if stopped:
            api("StopInstances", InstanceIds=[resource_id])
            self._wait(api, resource_id, {"stopped"})
            modify(**stopped)
            api("StartInstances", InstanceIds=[resource_id])
            self._wait(api, resource_id, {"running"})

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        not_found = ("InvalidInstanceID.NotFound",)
        api.removed("TerminateInstances", not_found, InstanceIds=[resource_id])
        self._wait(api, resource_id, {"terminated"})


TYPES: Mapping[str, Kind] = {
    "aws:ec2/instance:Instance": Instance(),
}
