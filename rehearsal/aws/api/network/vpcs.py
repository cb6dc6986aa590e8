"""VPCs, and the default VPC of an account. Sources: rehearsal/README.md, "Network"."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request, action, before_each, page, path, public, select
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.api.network.security_groups import make_group, rule
from orch.rehearsal.aws.api.network.subnets import cidr_of, make_subnet
from orch.rehearsal.aws.data.tables import regions
from orch.rehearsal.store import Doc

# -- VPC ---------------------------------------------------------------------------------------------------


@before_each("ec2")
def default_vpc(request: Request) -> None:
    """Create the default VPC that every account has in each region, with a public subnet per zone."""
    if request.store.meta(f"default vpc {request.region}"):
        return
    request.store.put_meta(f"default vpc {request.region}", True)
    vpc = _make_vpc(request, "172.31.0.0/16", default=True)
    gateway = request.cloud.new_id("igw")
    request.add(
        gateway,
        "internet-gateway",
        {
            "InternetGatewayId": gateway,
            "OwnerId": request.owner,
            "Attachments": [{"State": "available", "VpcId": vpc["VpcId"]}],
            "Tags": [],
            "_default": True,
        },
    )
    request.store.refer(gateway, vpc["VpcId"], "attached")
    table = request.thing("route-table", vpc["_main"])
    table["Routes"].append(
        {
            "DestinationCidrBlock": "0.0.0.0/0",
            "GatewayId": gateway,
            "Origin": "CreateRoute",
            "State": "active",
        }
    )
    request.add(vpc["_main"], "route-table", table)
    for number, zone in enumerate(regions()[request.region]):
        cidr = f"172.31.{number * 16}.0/20"
        make_subnet(request, vpc, cidr, (zone.name, zone.id), tags=[], default=True, public_ips=True)


def _make_vpc(request: Request, cidr: str, *, default: bool = False, tags: list[Doc] | None = None) -> Doc:
    vpc_id, table_id = request.cloud.new_id("vpc"), request.cloud.new_id("rtb")
    group = make_group(
        request, "default", "default VPC security group", vpc_id, [], egress=True, default=default
    )
    rule(request, group, egress=False, protocol="-1", peer=("GroupId", group["GroupId"]))
    vpc: Doc = {
        "VpcId": vpc_id,
        "OwnerId": request.owner,
        "CidrBlock": cidr,
        "CidrBlockAssociationSet": [
            {
                "AssociationId": request.cloud.new_id("vpc-cidr-assoc"),
                "CidrBlock": cidr,
                "CidrBlockState": {"State": "associated"},
            }
        ],
        "IsDefault": default,
        "State": "available",
        "InstanceTenancy": "default",
        "DhcpOptionsId": "dopt-0" + vpc_id[-16:],
        "Tags": tags or [],
        "_dns_support": True,
        "_dns_hostnames": default,
        "_main": table_id,
        "_group": group["GroupId"],
        "_acl": "acl-0" + vpc_id[-16:],
        "_default": default,
    }
    request.add(vpc_id, "vpc", vpc)
    association = request.cloud.new_id("rtbassoc")
    request.add(
        table_id,
        "route-table",
        {
            "RouteTableId": table_id,
            "VpcId": vpc_id,
            "OwnerId": request.owner,
            "Associations": [
                {
                    "Main": True,
                    "RouteTableAssociationId": association,
                    "RouteTableId": table_id,
                    "AssociationState": {"State": "associated"},
                }
            ],
            "PropagatingVgws": [],
            "Routes": [
                {
                    "DestinationCidrBlock": cidr,
                    "GatewayId": "local",
                    "Origin": "CreateRouteTable",
                    "State": "active",
                }
            ],
            "Tags": [],
            "_default": default,
        },
    )
    return vpc


@action("CreateVpc")
def create_vpc(request: Request) -> Doc:
    cidr = cidr_of(request["CidrBlock"], "CidrBlock")
    if not 16 <= cidr.prefixlen <= 28:
        raise AwsError("InvalidVpc.Range", f"The CIDR '{cidr}' is invalid.")
    if request.store.tally("vpc", request.region) >= request.cloud.quota("L-F678F1CE"):
        raise AwsError("VpcLimitExceeded", "The maximum number of VPCs has been reached.")
    return {"Vpc": public(_make_vpc(request, str(cidr), tags=request.tags_for("vpc")))}


VPC_FIELDS = {
    "vpc-id": path("VpcId"),
    "cidr": path("CidrBlock"),
    "cidr-block-association.cidr-block": path("CidrBlockAssociationSet", "CidrBlock"),
    "is-default": path("IsDefault"),
    "isDefault": path("IsDefault"),
    "state": path("State"),
    "owner-id": path("OwnerId"),
}


@action("DescribeVpcs")
def describe_vpcs(request: Request) -> Doc:
    return page(request, "Vpcs", select(request, "vpc", VPC_FIELDS, ids=request.get("VpcIds") or ()))


@action("DescribeVpcAttribute")
def describe_vpc_attribute(request: Request) -> Doc:
    vpc = request.thing("vpc", request["VpcId"])
    name = request["Attribute"]
    values = {
        "enableDnsSupport": ("EnableDnsSupport", vpc["_dns_support"]),
        "enableDnsHostnames": ("EnableDnsHostnames", vpc["_dns_hostnames"]),
        "enableNetworkAddressUsageMetrics": ("EnableNetworkAddressUsageMetrics", False),
    }
    key, value = values[name]
    return {"VpcId": vpc["VpcId"], key: {"Value": value}}


@action("ModifyVpcAttribute")
def modify_vpc_attribute(request: Request) -> Doc:
    vpc = request.thing("vpc", request["VpcId"])
    for name, key in (("EnableDnsSupport", "_dns_support"), ("EnableDnsHostnames", "_dns_hostnames")):
        if request.get(name) is not None:
            vpc[key] = bool(request[name].get("Value"))
    request.add(vpc["VpcId"], "vpc", vpc)
    return {}


@action("DeleteVpc")
def delete_vpc(request: Request) -> Doc:
    vpc = request.thing("vpc", request["VpcId"])
    own = {vpc["_main"], vpc["_group"]}
    if [source for source, _ in request.store.referrers(vpc["VpcId"]) if source not in own]:
        raise AwsError(
            "DependencyViolation", f"The vpc '{vpc['VpcId']}' has dependencies and cannot be deleted."
        )
    for thing in (vpc["VpcId"], *own):
        request.store.remove(thing)
    for rule_id, doc in request.store.each("security-group-rule", request.region):
        if doc["GroupId"] == vpc["_group"]:
            request.store.remove(rule_id)
    return {}
