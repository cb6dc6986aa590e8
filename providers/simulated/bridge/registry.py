"""Token -> what the type is."""

from __future__ import annotations

from orch.providers.simulated.bridge import addresses, compute, groups, iam, network, routing
from orch.providers.simulated.bridge.instance import Instance
from orch.providers.simulated.bridge.kinds import Kind

KINDS: dict[str, Kind] = {
    "aws:ec2/vpc:Vpc": network.Vpc(),
    "aws:ec2/subnet:Subnet": network.Subnet(),
    "aws:ec2/internetGateway:InternetGateway": network.InternetGateway(),
    "aws:ec2/natGateway:NatGateway": network.NatGateway(),
    "aws:ec2/eip:Eip": addresses.Eip(),
    "aws:ec2/eipAssociation:EipAssociation": addresses.EipAssociation(),
    "aws:ec2/routeTable:RouteTable": routing.RouteTable(),
    "aws:ec2/route:Route": routing.Route(),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": routing.RouteTableAssociation(),
    "aws:ec2/vpcEndpoint:VpcEndpoint": network.VpcEndpoint(),
    "aws:ec2/securityGroup:SecurityGroup": groups.SecurityGroup(),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": groups.SecurityGroupRule("Ingress"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": groups.SecurityGroupRule("Egress"),
    "aws:ec2/placementGroup:PlacementGroup": compute.PlacementGroup(),
    "aws:ec2/capacityReservation:CapacityReservation": compute.CapacityReservation(),
    "aws:ec2/launchTemplate:LaunchTemplate": compute.LaunchTemplate(),
    "aws:ec2/keyPair:KeyPair": compute.KeyPair(),
    "aws:ec2/tag:Tag": compute.Tag(),
    "aws:ec2/instance:Instance": Instance(),
    "aws:iam/role:Role": iam.Role(),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": iam.RolePolicyAttachment(),
    "aws:iam/rolePolicy:RolePolicy": iam.RolePolicy(),
    "aws:iam/instanceProfile:InstanceProfile": iam.InstanceProfile(),
}
