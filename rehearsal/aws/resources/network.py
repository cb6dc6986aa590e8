"""VPCs, subnets, gateways and endpoints as Pulumi resources."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from orch.rehearsal.aws.resources.kinds import Api, ApiFailure, Kind, Listed, Props, specification
from orch.rehearsal.store import Doc


class Vpc(Listed):
    label = "EC2 VPC"
    name = "Vpc"
    id_name = "VpcId"
    gone = ("InvalidVpcID.NotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateVpc", CidrBlock=inputs.get("cidrBlock"), TagSpecifications=specification("vpc", tags)
        )
        vpc = response["Vpc"]["VpcId"]
        if inputs.get("enableDnsHostnames"):
            api("ModifyVpcAttribute", VpcId=vpc, EnableDnsHostnames={"Value": True})
        if inputs.get("enableDnsSupport") is False:
            api("ModifyVpcAttribute", VpcId=vpc, EnableDnsSupport={"Value": False})
        return vpc

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        here = [{"Name": "vpc-id", "Values": [resource_id]}]
        table = api("DescribeRouteTables", Filters=[*here, {"Name": "association.main", "Values": ["true"]}])
        group = api("DescribeSecurityGroups", Filters=[*here, {"Name": "group-name", "Values": ["default"]}])
        hostnames = api("DescribeVpcAttribute", VpcId=resource_id, Attribute="enableDnsHostnames")
        support = api("DescribeVpcAttribute", VpcId=resource_id, Attribute="enableDnsSupport")
        main = table["RouteTables"][0]["RouteTableId"]
        return {
            "arn": f"arn:aws:ec2:{api.region}:{doc['OwnerId']}:vpc/{resource_id}",
            "ownerId": doc["OwnerId"],
            "cidrBlock": doc["CidrBlock"],
            "instanceTenancy": doc["InstanceTenancy"],
            "dhcpOptionsId": doc["DhcpOptionsId"],
            "enableDnsHostnames": hostnames["EnableDnsHostnames"]["Value"],
            "enableDnsSupport": support["EnableDnsSupport"]["Value"],
            "enableNetworkAddressUsageMetrics": False,
            "mainRouteTableId": main,
            "defaultRouteTableId": main,
            "defaultSecurityGroupId": group["SecurityGroups"][0]["GroupId"],
            "defaultNetworkAclId": "acl-0" + resource_id[-16:],
            "ipv6AssociationId": "",
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        for key, name in (
            ("enableDnsHostnames", "EnableDnsHostnames"),
            ("enableDnsSupport", "EnableDnsSupport"),
        ):
            if key in changed:
                values: dict[str, Any] = {"VpcId": resource_id, name: {"Value": bool(inputs.get(key))}}
                api("ModifyVpcAttribute", **values)


class Subnet(Listed):
    label = "EC2 Subnet"
    name = "Subnet"
    id_name = "SubnetId"
    gone = ("InvalidSubnetID.NotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateSubnet",
            VpcId=inputs["vpcId"],
            CidrBlock=inputs.get("cidrBlock"),
            AvailabilityZone=inputs.get("availabilityZone"),
            AvailabilityZoneId=inputs.get("availabilityZoneId"),
            TagSpecifications=specification("subnet", tags),
        )
        subnet = response["Subnet"]["SubnetId"]
        if inputs.get("mapPublicIpOnLaunch"):
            api("ModifySubnetAttribute", SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
        return subnet

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "arn": doc["SubnetArn"],
            "ownerId": doc["OwnerId"],
            "availabilityZone": doc["AvailabilityZone"],
            "availabilityZoneId": doc["AvailabilityZoneId"],
            "cidrBlock": doc["CidrBlock"],
            "vpcId": doc["VpcId"],
            "mapPublicIpOnLaunch": doc["MapPublicIpOnLaunch"],
            "assignIpv6AddressOnCreation": doc["AssignIpv6AddressOnCreation"],
            "enableDns64": doc["EnableDns64"],
            "ipv6Native": doc["Ipv6Native"],
            "privateDnsHostnameTypeOnLaunch": "ip-name",
            "ipv6CidrBlockAssociationId": "",
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if "mapPublicIpOnLaunch" in changed:
            value = {"Value": bool(inputs.get("mapPublicIpOnLaunch"))}
            api("ModifySubnetAttribute", SubnetId=resource_id, MapPublicIpOnLaunch=value)


class InternetGateway(Listed):
    label = "EC2 Internet Gateway"
    name = "InternetGateway"
    id_name = "InternetGatewayId"
    gone = ("InvalidInternetGatewayID.NotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api("CreateInternetGateway", TagSpecifications=specification("internet-gateway", tags))
        gateway = response["InternetGateway"]["InternetGatewayId"]
        if inputs.get("vpcId"):
            api("AttachInternetGateway", InternetGatewayId=gateway, VpcId=inputs["vpcId"])
        return gateway

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "arn": f"arn:aws:ec2:{api.region}:{doc['OwnerId']}:internet-gateway/{resource_id}",
            "ownerId": doc["OwnerId"],
            "vpcId": next((one["VpcId"] for one in doc["Attachments"]), ""),
        }

    def _detach(self, api: Api, resource_id: str, vpc: str | None) -> None:
        if vpc:
            gone = ("Gateway.NotAttached", *self.gone)
            api.removed("DetachInternetGateway", gone, InternetGatewayId=resource_id, VpcId=vpc)

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if "vpcId" in changed:
            self._detach(api, resource_id, state.get("vpcId"))
            if inputs.get("vpcId"):
                api("AttachInternetGateway", InternetGatewayId=resource_id, VpcId=inputs["vpcId"])

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        self._detach(api, resource_id, state.get("vpcId"))
        super().delete(api, resource_id, state)


class NatGateway(Listed):
    label = "EC2 NAT Gateway"
    name = "NatGateway"
    id_name = "NatGatewayId"
    gone = ("NatGatewayNotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        from orch.rehearsal.aws.api.errors import AwsError

        response = api(
            "CreateNatGateway",
            SubnetId=inputs.get("subnetId"),
            AllocationId=inputs.get("allocationId"),
            ConnectivityType=inputs.get("connectivityType"),
            TagSpecifications=specification("natgateway", tags),
        )
        nat = response["NatGateway"]["NatGatewayId"]
        while (doc := self.find(api, nat)) is not None and doc["State"] == "pending":
            time.sleep(0.1)
        if doc is not None and doc["State"] == "failed":
            # The real provider waits for "available" and tells the gateway's own failure.
            raise ApiFailure("ec2", "CreateNatGateway", AwsError(doc["FailureCode"], doc["FailureMessage"]))
        return nat

    def find(self, api: Api, resource_id: str) -> Doc | None:
        doc = super().find(api, resource_id)
        return None if doc is None or doc["State"] == "deleted" else doc

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        address = next(iter(doc["NatGatewayAddresses"]), {})
        return {
            "allocationId": address.get("AllocationId", ""),
            "associationId": address.get("AssociationId", ""),
            "connectivityType": doc["ConnectivityType"],
            "networkInterfaceId": address.get("NetworkInterfaceId", ""),
            "privateIp": address.get("PrivateIp", ""),
            "publicIp": address.get("PublicIp", ""),
            "subnetId": doc["SubnetId"],
            "vpcId": doc["VpcId"],
            "secondaryAllocationIds": [],
            "secondaryPrivateIpAddresses": [],
        }

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        if self.find(api, resource_id) is not None:
            super().delete(api, resource_id, state)


class VpcEndpoint(Listed):
    label = "EC2 VPC Endpoint"
    name = "VpcEndpoint"
    id_name = "VpcEndpointId"
    gone = ("InvalidVpcEndpointId.NotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateVpcEndpoint",
            VpcId=inputs["vpcId"],
            ServiceName=inputs.get("serviceName"),
            VpcEndpointType=inputs.get("vpcEndpointType"),
            RouteTableIds=inputs.get("routeTableIds"),
            SubnetIds=inputs.get("subnetIds"),
            SecurityGroupIds=inputs.get("securityGroupIds"),
            PrivateDnsEnabled=inputs.get("privateDnsEnabled", False),
            PolicyDocument=inputs.get("policy"),
            TagSpecifications=specification("vpc-endpoint", tags),
        )
        return response["VpcEndpoint"]["VpcEndpointId"]

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "arn": f"arn:aws:ec2:{api.region}:{doc['OwnerId']}:vpc-endpoint/{resource_id}",
            "ownerId": doc["OwnerId"],
            "vpcId": doc["VpcId"],
            "serviceName": doc["ServiceName"],
            "vpcEndpointType": doc["VpcEndpointType"],
            "routeTableIds": doc["RouteTableIds"],
            "subnetIds": doc["SubnetIds"],
            "securityGroupIds": [group["GroupId"] for group in doc["Groups"]],
            "privateDnsEnabled": doc["PrivateDnsEnabled"],
            "policy": doc["PolicyDocument"],
            "networkInterfaceIds": doc["NetworkInterfaceIds"],
            "requesterManaged": False,
            "state": doc["State"],
            "cidrBlocks": [],
            "dnsEntries": [],
            "prefixListId": "",
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        before, after = set(state.get("routeTableIds") or ()), set(inputs.get("routeTableIds") or ())
        api(
            "ModifyVpcEndpoint",
            VpcEndpointId=resource_id,
            AddRouteTableIds=sorted(after - before) or None,
            RemoveRouteTableIds=sorted(before - after) or None,
            PolicyDocument=inputs.get("policy") if "policy" in changed else None,
        )

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api("DeleteVpcEndpoints", VpcEndpointIds=[resource_id])


TYPES: Mapping[str, Kind] = {
    "aws:ec2/vpc:Vpc": Vpc(),
    "aws:ec2/subnet:Subnet": Subnet(),
    "aws:ec2/internetGateway:InternetGateway": InternetGateway(),
    "aws:ec2/natGateway:NatGateway": NatGateway(),
    "aws:ec2/vpcEndpoint:VpcEndpoint": VpcEndpoint(),
}
