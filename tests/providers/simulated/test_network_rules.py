"""Networks: what may be deleted when, addresses and rules of security groups."""

from __future__ import annotations

from typing import Any


def test_a_vpc_goes_after_all_that_is_in_it(account: Any, refused: Any) -> None:
    gateway = account.attach_gateway()

    def delete() -> None:
        account.call("DeleteVpc", VpcId=account.vpc)

    assert refused(delete).code == "DependencyViolation"
    account.call("DetachInternetGateway", InternetGatewayId=gateway, VpcId=account.vpc)
    account.call("DeleteInternetGateway", InternetGatewayId=gateway)
    account.call("DeleteSubnet", SubnetId=account.subnet)
    assert refused(delete).code == "DependencyViolation", "a security group is left"
    account.call("DeleteSecurityGroup", GroupId=account.group)
    delete()
    assert not account.cloud.everything()


def test_a_group_in_use_and_a_subnet_with_instances_stay(account: Any, refused: Any) -> None:
    (instance,) = account.launch()
    for action, name, value in (
        ("DeleteSecurityGroup", "GroupId", account.group),
        ("DeleteSubnet", "SubnetId", account.subnet),
    ):
        assert refused(account.call, action, **{name: value}).code == "DependencyViolation"
    account.call("TerminateInstances", InstanceIds=[instance])
    account.call("DeleteSecurityGroup", GroupId=account.group)
    account.call("DeleteSubnet", SubnetId=account.subnet)


def test_what_shuts_down_still_holds_its_things(account: Any, refused: Any) -> None:
    account.cloud.turn(clock=1000.0, shutting_down_s=30)
    (instance,) = account.launch()
    account.call("TerminateInstances", InstanceIds=[instance])
    assert refused(account.call, "DeleteSubnet", SubnetId=account.subnet).code == "DependencyViolation"
    account.cloud.turn(clock=1031.0)
    account.call("DeleteSubnet", SubnetId=account.subnet)


def test_subnets_lie_in_their_vpc_and_apart(account: Any, refused: Any) -> None:
    assert refused(account.add_subnet, "10.0.0.128/25", "us-east-1a").code == "InvalidSubnet.Conflict"
    assert refused(account.add_subnet, "10.1.0.0/24", "us-east-1a").code == "InvalidSubnet.Range"
    assert refused(account.add_subnet, "10.0.3.0/29", "us-east-1a").code == "InvalidSubnet.Range"
    assert refused(account.add_subnet, "10.0.3.0/24", "us-east-1z").code == "InvalidParameterValue"
    assert refused(account.call, "CreateVpc", CidrBlock="10.0.0.0/8").code == "InvalidVpc.Range"


def test_a_region_has_five_vpcs_the_default_one_included(account: Any, refused: Any) -> None:
    for number in range(1, 4):
        account.call("CreateVpc", CidrBlock=f"10.{number}.0.0/16")
    assert refused(account.call, "CreateVpc", CidrBlock="10.9.0.0/16").code == "VpcLimitExceeded"
    account.cloud.turn(quotas={"L-F678F1CE": 6})
    account.call("CreateVpc", CidrBlock="10.9.0.0/16")


# -- addresses ---------------------------------------------------------------------------------------------


def allocate(account: Any) -> str:
    return account.call("AllocateAddress", Domain="vpc")["AllocationId"]


def test_five_addresses_and_no_sixth(account: Any, refused: Any) -> None:
    made = [allocate(account) for _ in range(5)]
    assert refused(allocate, account).code == "AddressLimitExceeded"
    account.call("ReleaseAddress", AllocationId=made[0])
    allocate(account)


def test_an_address_goes_to_an_interface_where_an_instance_has_several(account: Any, refused: Any) -> None:
    account.attach_gateway()
    (instance,) = account.launch("p5.48xlarge", NetworkInterfaces=account.p5_nics())
    address = allocate(account)
    error = refused(account.call, "AssociateAddress", AllocationId=address, InstanceId=instance)
    assert error.code == "InvalidInstanceID"
    assert "multiple interfaces" in error.message
    interfaces = account.cloud.instances()[instance]["NetworkInterfaces"]
    alone = next(one for one in interfaces if one["InterfaceType"] == "efa-only")["NetworkInterfaceId"]
    error = refused(account.call, "AssociateAddress", AllocationId=address, NetworkInterfaceId=alone)
    assert error.code == "InvalidParameterValue"
    first = interfaces[0]["NetworkInterfaceId"]
    account.call("AssociateAddress", AllocationId=address, NetworkInterfaceId=first)
    assert account.cloud.instances()[instance]["PublicIpAddress"].startswith("198.18.")
    assert refused(account.call, "ReleaseAddress", AllocationId=address).code == "InvalidIPAddress.InUse"
    account.call("TerminateInstances", InstanceIds=[instance])
    account.call("ReleaseAddress", AllocationId=address)


def test_an_address_wants_a_gateway_and_an_instance_that_runs(account: Any, refused: Any) -> None:
    account.cloud.turn(clock=1000.0, pending_s=10)
    (instance,) = account.launch()
    address = allocate(account)

    def associate() -> None:
        account.call("AssociateAddress", AllocationId=address, InstanceId=instance)

    assert refused(associate).code == "IncorrectInstanceState"
    account.cloud.turn(clock=1011.0)
    assert refused(associate).code == "Gateway.NotAttached"
    account.attach_gateway()
    associate()
    (other,) = account.launch()
    account.cloud.turn(clock=1030.0)
    error = refused(account.call, "AssociateAddress", AllocationId=address, InstanceId=other)
    assert error.code == "Resource.AlreadyAssociated"


def test_a_gateway_stays_while_addresses_are_mapped(account: Any, refused: Any) -> None:
    gateway = account.attach_gateway()
    (instance,) = account.launch()
    address = allocate(account)
    made = account.call("AssociateAddress", AllocationId=address, InstanceId=instance)
    where = {"InternetGatewayId": gateway, "VpcId": account.vpc}
    assert refused(account.call, "DetachInternetGateway", **where).code == "DependencyViolation"
    assert (
        refused(account.call, "DeleteInternetGateway", InternetGatewayId=gateway).code
        == "DependencyViolation"
    )
    account.call("DisassociateAddress", AssociationId=made["AssociationId"])
    account.call("DetachInternetGateway", **where)


def test_a_nat_gateway_without_an_internet_gateway_fails_after_the_call(account: Any) -> None:
    made = account.call("CreateNatGateway", SubnetId=account.subnet, AllocationId=allocate(account))
    assert made["NatGateway"]["FailureCode"] == "Gateway.NotAttached"


def test_a_nat_gateway_holds_its_subnet_and_its_address(account: Any, refused: Any) -> None:
    account.attach_gateway()
    address = allocate(account)
    nat = account.call("CreateNatGateway", SubnetId=account.subnet, AllocationId=address)["NatGateway"]
    again = {"SubnetId": account.subnet, "AllocationId": address}
    assert refused(account.call, "CreateNatGateway", **again).code == "InvalidAllocationID.InUse"
    assert refused(account.call, "DeleteSubnet", SubnetId=account.subnet).code == "DependencyViolation"
    account.call("DeleteNatGateway", NatGatewayId=nat["NatGatewayId"])
    account.call("ReleaseAddress", AllocationId=address)
    account.call("DeleteSubnet", SubnetId=account.subnet)


def test_the_quota_of_interfaces_counts_every_efa(account: Any, refused: Any) -> None:
    account.cloud.turn(quotas={"L-DF5E4CA3": 50})
    account.launch("p5.48xlarge", NetworkInterfaces=account.p5_nics())
    error = refused(account.launch, "p5.48xlarge", NetworkInterfaces=account.p5_nics())
    assert error.code == "NetworkInterfaceLimitExceeded"


# -- routes ------------------------------------------------------------------------------------------------


def test_routes_want_a_target_of_their_own_network_and_are_there_once(account: Any, refused: Any) -> None:
    table = account.call("CreateRouteTable", VpcId=account.vpc)["RouteTable"]["RouteTableId"]
    route = {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0"}
    loose = account.call("CreateInternetGateway")["InternetGateway"]["InternetGatewayId"]
    error = refused(account.call, "CreateRoute", **route, GatewayId=loose)
    assert (error.code, "belong to different networks" in error.message) == ("InvalidParameterValue", True)
    gateway = account.attach_gateway()
    account.call("CreateRoute", **route, GatewayId=gateway)
    assert refused(account.call, "CreateRoute", **route, GatewayId=gateway).code == "RouteAlreadyExists"
    error = refused(
        account.call,
        "CreateRoute",
        RouteTableId=table,
        DestinationCidrBlock="1.0.0.0/8",
        NatGatewayId="nat-0",
    )
    assert error.code == "InvalidNatGatewayID.NotFound"


def test_a_route_to_something_deleted_is_a_black_hole(account: Any) -> None:
    account.attach_gateway()
    table = account.call("CreateRouteTable", VpcId=account.vpc)["RouteTable"]["RouteTableId"]
    nat = account.call("CreateNatGateway", SubnetId=account.subnet, AllocationId=allocate(account))[
        "NatGateway"
    ]
    nat_id = nat["NatGatewayId"]
    account.call("CreateRoute", RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat_id)
    account.call("DeleteNatGateway", NatGatewayId=nat_id)
    found = account.call("DescribeRouteTables", RouteTableIds=[table])["RouteTables"][0]
    assert [route["State"] for route in found["Routes"]] == ["active", "blackhole"]


def test_a_subnet_has_one_route_table_and_a_table_in_use_stays(account: Any, refused: Any) -> None:
    tables = [account.call("CreateRouteTable", VpcId=account.vpc)["RouteTable"]["RouteTableId"] for _ in "ab"]
    made = account.call("AssociateRouteTable", RouteTableId=tables[0], SubnetId=account.subnet)
    again = {"RouteTableId": tables[1], "SubnetId": account.subnet}
    assert refused(account.call, "AssociateRouteTable", **again).code == "Resource.AlreadyAssociated"
    assert refused(account.call, "DeleteRouteTable", RouteTableId=tables[0]).code == "DependencyViolation"
    account.call("DisassociateRouteTable", AssociationId=made["AssociationId"])
    account.call("DeleteRouteTable", RouteTableId=tables[0])


# -- security groups ---------------------------------------------------------------------------------------


def ssh_from(cidr: str) -> dict[str, Any]:
    return {
        "IpPermissions": [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": cidr}]}]
    }


def test_a_rule_is_there_once_and_only_what_is_there_is_revoked(account: Any, refused: Any) -> None:
    allow = {"GroupId": account.group, **ssh_from("10.0.0.0/8")}
    account.call("AuthorizeSecurityGroupIngress", **allow)
    error = refused(account.call, "AuthorizeSecurityGroupIngress", **allow)
    assert error.code == "InvalidPermission.Duplicate"
    assert "peer: 10.0.0.0/8, TCP, from port: 22, to port: 22, ALLOW" in error.message
    other = {"GroupId": account.group, **ssh_from("11.0.0.0/8")}
    assert refused(account.call, "RevokeSecurityGroupIngress", **other).code == "InvalidPermission.NotFound"
    account.call("RevokeSecurityGroupIngress", **allow)


def test_a_group_has_at_most_sixty_rules_each_way(account: Any, refused: Any) -> None:
    for number in range(60):
        account.call(
            "AuthorizeSecurityGroupIngress", GroupId=account.group, **ssh_from(f"10.0.{number}.0/24")
        )
    error = refused(
        account.call, "AuthorizeSecurityGroupIngress", GroupId=account.group, **ssh_from("10.1.0.0/24")
    )
    assert error.code == "RulesPerSecurityGroupLimitExceeded"


def test_a_group_that_another_names_stays(account: Any, refused: Any) -> None:
    made = account.call("CreateSecurityGroup", GroupName="b", Description="b", VpcId=account.vpc)
    entry = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": account.group}]}
    account.call("AuthorizeSecurityGroupIngress", GroupId=made["GroupId"], IpPermissions=[entry])
    assert refused(account.call, "DeleteSecurityGroup", GroupId=account.group).code == "DependencyViolation"
    account.call("DeleteSecurityGroup", GroupId=made["GroupId"])
    account.call("DeleteSecurityGroup", GroupId=account.group)


def test_names_of_groups_are_taken_once_per_vpc(account: Any, refused: Any) -> None:
    named = {"GroupName": "nodes", "Description": "again", "VpcId": account.vpc}
    assert refused(account.call, "CreateSecurityGroup", **named).code == "InvalidGroup.Duplicate"
    groups = account.call("DescribeSecurityGroups", Filters=[{"Name": "vpc-id", "Values": [account.vpc]}])
    default = next(g for g in groups["SecurityGroups"] if g["GroupName"] == "default")
    assert refused(account.call, "DeleteSecurityGroup", GroupId=default["GroupId"]).code == "CannotDelete"


def test_a_new_group_lets_everything_out_and_nothing_in(account: Any) -> None:
    found = account.call("DescribeSecurityGroups", GroupIds=[account.group])["SecurityGroups"][0]
    assert found["IpPermissions"] == []
    assert found["IpPermissionsEgress"][0]["IpRanges"] == [{"CidrIp": "0.0.0.0/0"}]


def test_private_names_of_an_endpoint_want_dns_in_the_vpc(account: Any, refused: Any) -> None:
    wanted = {
        "VpcId": account.vpc,
        "VpcEndpointType": "Interface",
        "ServiceName": "com.amazonaws.us-east-1.ssm",
        "SubnetIds": [account.subnet],
        "SecurityGroupIds": [account.group],
        "PrivateDnsEnabled": True,
    }
    assert refused(account.call, "CreateVpcEndpoint", **wanted).code == "InvalidParameter"
    account.call("ModifyVpcAttribute", VpcId=account.vpc, EnableDnsHostnames={"Value": True})
    made = account.call("CreateVpcEndpoint", **wanted)["VpcEndpoint"]
    assert refused(account.call, "DeleteSubnet", SubnetId=account.subnet).code == "DependencyViolation"
    account.call("DeleteVpcEndpoints", VpcEndpointIds=[made["VpcEndpointId"]])
    account.call("DeleteSubnet", SubnetId=account.subnet)
    error = refused(account.call, "CreateVpcEndpoint", VpcId=account.vpc, ServiceName="com.example.x")
    assert error.code == "InvalidServiceName"


def test_tags_are_set_found_and_taken_away(account: Any, refused: Any) -> None:
    (instance,) = account.launch()
    account.call("CreateTags", Resources=[instance, account.vpc], Tags=[{"Key": "orch:stack", "Value": "s"}])
    found = account.call("DescribeTags", Filters=[{"Name": "tag:orch:stack", "Values": ["s"]}])["Tags"]
    assert {one["ResourceId"] for one in found} == {instance, account.vpc}
    named = [{"Name": "tag:orch:stack", "Values": ["s"]}]
    assert len(account.call("DescribeInstances", Filters=named)["Reservations"]) == 1
    account.call("DeleteTags", Resources=[instance], Tags=[{"Key": "orch:stack"}])
    assert not account.call("DescribeInstances", Filters=named)["Reservations"]
    reserved = [{"Key": "aws:x", "Value": "y"}]
    assert (
        refused(account.call, "CreateTags", Resources=[instance], Tags=reserved).code
        == "InvalidParameterValue"
    )
    assert refused(account.call, "DescribeVpcs", Filters=[{"Name": "nonsense", "Values": []}]).code == (
        "InvalidParameterValue"
    )
