"""Elastic IP addresses as Pulumi resources."""

from __future__ import annotations

from collections.abc import Mapping

from orch.rehearsal.aws.resources.kinds import Api, Kind, Listed, Props, first, specification
from orch.rehearsal.store import Doc


class Eip(Listed):
    label = "EC2 EIP"
    name = "Address"
    id_name = "AllocationId"
    gone = ("InvalidAllocationID.NotFound",)

    def find(self, api: Api, resource_id: str) -> Doc | None:
        return first(api, "DescribeAddresses", "Addresses", self.gone, AllocationIds=[resource_id])

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api("AllocateAddress", Domain="vpc", TagSpecifications=specification("elastic-ip", tags))
        self._associate(api, response["AllocationId"], inputs)
        return response["AllocationId"]

    def _associate(self, api: Api, allocation: str, inputs: Props) -> None:
        if inputs.get("instance") or inputs.get("networkInterface"):
            api(
                "AssociateAddress",
                AllocationId=allocation,
                InstanceId=inputs.get("instance") if not inputs.get("networkInterface") else None,
                NetworkInterfaceId=inputs.get("networkInterface"),
                AllowReassociation=True,
            )

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "allocationId": resource_id,
            "arn": f"arn:aws:ec2:{api.region}:{api.owner}:elastic-ip/{resource_id}",
            "associationId": doc.get("AssociationId", ""),
            "domain": "vpc",
            "instance": doc.get("InstanceId", ""),
            "networkInterface": doc.get("NetworkInterfaceId", ""),
            "networkBorderGroup": doc["NetworkBorderGroup"],
            "publicIpv4Pool": doc["PublicIpv4Pool"],
            "publicIp": doc["PublicIp"],
            "publicDns": f"ec2-{doc['PublicIp'].replace('.', '-')}.compute.amazonaws.com",
            "privateIp": doc.get("PrivateIpAddress", ""),
            "privateDns": "",
            "ptrRecord": "",
            "carrierIp": "",
            "customerOwnedIp": "",
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if changed & {"instance", "networkInterface"}:
            if state.get("associationId"):
                not_found = ("InvalidAssociationID.NotFound",)
                api.removed("DisassociateAddress", not_found, AssociationId=state["associationId"])
            self._associate(api, resource_id, inputs)

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        doc = self.find(api, resource_id)
        if doc is None:
            return
        if (state.get("instance") or state.get("networkInterface")) and doc.get("AssociationId"):
            not_associated = ("InvalidAssociationID.NotFound",)
            api.removed("DisassociateAddress", not_associated, AssociationId=doc["AssociationId"])
        api.removed("ReleaseAddress", self.gone, AllocationId=resource_id)


class EipAssociation(Kind):
    label = "EC2 EIP Association"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "AssociateAddress",
            AllocationId=inputs.get("allocationId"),
            PublicIp=inputs.get("publicIp"),
            InstanceId=inputs.get("instanceId"),
            NetworkInterfaceId=inputs.get("networkInterfaceId"),
            AllowReassociation=inputs.get("allowReassociation"),
        )
        return response["AssociationId"]

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        filters = [{"Name": "association-id", "Values": [resource_id]}]
        doc = first(api, "DescribeAddresses", "Addresses", (), Filters=filters)
        if doc is None:
            return None
        return {
            "allocationId": doc["AllocationId"],
            "instanceId": doc.get("InstanceId", ""),
            "networkInterfaceId": doc.get("NetworkInterfaceId", ""),
            "privateIpAddress": doc.get("PrivateIpAddress", ""),
            "publicIp": doc["PublicIp"],
        }

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed("DisassociateAddress", ("InvalidAssociationID.NotFound",), AssociationId=resource_id)


TYPES: Mapping[str, Kind] = {
    "aws:ec2/eip:Eip": Eip(),
    "aws:ec2/eipAssociation:EipAssociation": EipAssociation(),
}
