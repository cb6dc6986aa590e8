"""Token -> what the type is."""

from __future__ import annotations

from orch.rehearsal.aws.resources import addresses, compute, iam, network, routes, security_groups
from orch.rehearsal.aws.resources.instance import Instance
from orch.rehearsal.aws.resources.kinds import Kind

KINDS: dict[str, Kind] = {
    "aws:ec2/vpc:Vpc": network.Vpc(),
    "aws:ec2/subnet:Subnet": network.Subnet(),
    "aws:ec2/internetGateway:InternetGateway": network.InternetGateway(),
    "aws:ec2/natGateway:NatGateway": network.NatGateway(),
    "aws:ec2/eip:Eip": addresses.Eip(),
    "aws:ec2/eipAssociation:EipAssociation": addresses.EipAssociation(),
    "aws:ec2/routeTable:RouteTable": routes.RouteTable(),
    "aws:ec2/route:Route": routes.Route(),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": routes.RouteTableAssociation(),
    "aws:ec2/vpcEndpoint:VpcEndpoint": network.VpcEndpoint(),
    "aws:ec2/securityGroup:SecurityGroup": security_groups.SecurityGroup(),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": security_groups.SecurityGroupRule("Ingress"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": security_groups.SecurityGroupRule("Egress"),
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
