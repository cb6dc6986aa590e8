"""VPCs, subnets, gateways and endpoints. Sources: ../README.md, "Network"."""

from __future__ import annotations

import ipaddress

from orch.providers.simulated.aws.data import regions
from orch.providers.simulated.aws.errors import AwsError, missing
from orch.providers.simulated.aws.registry import (
    Request,
    action,
    page,
    path,
    public,
    select,
    stamp,
)
from orch.providers.simulated.store import Doc

RESERVED = 5
"""AWS keeps the first four addresses and the last one of each subnet."""

FIRST = 4


def account_of(_: Request) -> str:
    from orch.providers.simulated.core import ACCOUNT

    return ACCOUNT


# -- VPC ---------------------------------------------------------------------------------------------------


def default_vpc(request: Request) -> None:
    """Every account has a default VPC in each region, with a public subnet per zone."""
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
            "OwnerId": account_of(request),
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
        _make_subnet(request, vpc, cidr, (zone.name, zone.id), tags=[], default=True, public_ips=True)


def _make_vpc(request: Request, cidr: str, *, default: bool = False, tags: list[Doc] | None = None) -> Doc:
    from orch.providers.simulated.aws.groups import make_group, rule

    vpc_id, table_id = request.cloud.new_id("vpc"), request.cloud.new_id("rtb")
    group = make_group(
        request, "default", "default VPC security group", vpc_id, [], egress=True, default=default
    )
    rule(request, group, egress=False, protocol="-1", group_id=group["GroupId"])
    vpc: Doc = {
        "VpcId": vpc_id,
        "OwnerId": account_of(request),
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
            "OwnerId": account_of(request),
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
    default_vpc(request)
    cidr = _network(request["CidrBlock"], "CidrBlock")
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
    default_vpc(request)
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


# -- subnets -----------------------------------------------------------------------------------------------


def _network(text: str, name: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        raise AwsError(
            "InvalidParameterValue",
            f"Value ({text}) for parameter {name} is invalid. This is not a valid CIDR block.",
        ) from None


def _make_subnet(
    request: Request,
    vpc: Doc,
    cidr: str,
    zone: tuple[str, str],
    *,
    tags: list[Doc],
    default: bool = False,
    public_ips: bool = False,
) -> Doc:
    subnet_id = request.cloud.new_id("subnet")
    subnet: Doc = {
        "SubnetId": subnet_id,
        "SubnetArn": request.arn(f"subnet/{subnet_id}"),
        "VpcId": vpc["VpcId"],
        "OwnerId": account_of(request),
        "CidrBlock": cidr,
        "AvailabilityZone": zone[0],
        "AvailabilityZoneId": zone[1],
        "State": "available",
        "DefaultForAz": default,
        "MapPublicIpOnLaunch": public_ips,
        "AssignIpv6AddressOnCreation": False,
        "EnableDns64": False,
        "Ipv6Native": False,
        "MapCustomerOwnedIpOnLaunch": False,
        "PrivateDnsNameOptionsOnLaunch": {
            "HostnameType": "ip-name",
            "EnableResourceNameDnsARecord": False,
            "EnableResourceNameDnsAAAARecord": False,
        },
        "Ipv6CidrBlockAssociationSet": [],
        "Tags": tags,
        "_default": default,
    }
    request.add(subnet_id, "subnet", subnet)
    request.store.refer(subnet_id, vpc["VpcId"], "in")
    return subnet


def zone_of(request: Request, name: str | None, zone_id: str | None = None) -> tuple[str, str]:
    """(name, id) of a zone of the request's region."""
    zones = regions()[request.region]
    found = next((z for z in zones if name == z.name or (name is None and zone_id == z.id)), None)
    if found is None:
        names = ", ".join(z.name for z in zones)
        raise AwsError(
            "InvalidParameterValue",
            f"Value ({name or zone_id}) for parameter availabilityZone is invalid. "
            f"Subnets can currently only be created in the following availability zones: {names}.",
        )
    return found.name, found.id


@action("CreateSubnet")
def create_subnet(request: Request) -> Doc:
    vpc = request.thing("vpc", request["VpcId"])
    cidr = _network(request["CidrBlock"], "CidrBlock")
    if not 16 <= cidr.prefixlen <= 28 or not cidr.subnet_of(ipaddress.IPv4Network(vpc["CidrBlock"])):
        raise AwsError("InvalidSubnet.Range", f"The CIDR '{cidr}' is invalid.")
    name, zone_id = regions()[request.region][0].name, regions()[request.region][0].id
    if request.get("AvailabilityZone") or request.get("AvailabilityZoneId"):
        name, zone_id = zone_of(request, request.get("AvailabilityZone"), request.get("AvailabilityZoneId"))
    others = [
        request.store.get(source, "subnet") for source, _ in request.store.referrers(vpc["VpcId"], "in")
    ]
    others = [other for other in others if other]
    if any(cidr.overlaps(ipaddress.IPv4Network(other["CidrBlock"])) for other in others):
        raise AwsError("InvalidSubnet.Conflict", f"The CIDR '{cidr}' conflicts with another subnet")
    if len(others) >= request.cloud.quota("L-407747CB"):
        raise AwsError("SubnetLimitExceeded", "The maximum number of subnets has been reached.")
    subnet = _make_subnet(request, vpc, str(cidr), (name, zone_id), tags=request.tags_for("subnet"))
    return {"Subnet": _with_free(request, subnet)}


def free_addresses(request: Request, subnet: Doc) -> int:
    size = ipaddress.IPv4Network(subnet["CidrBlock"]).num_addresses
    return size - RESERVED - request.store.taken(f"addresses {subnet['SubnetId']}")


def take_address(request: Request, subnet: Doc, owner: str, wanted: str | None = None) -> str:
    """An address of the subnet for an interface. The caller has asked `free_addresses` before."""
    network = ipaddress.IPv4Network(subnet["CidrBlock"])
    space = f"addresses {subnet['SubnetId']}"
    last = network.num_addresses - 2
    if wanted:
        if ipaddress.IPv4Address(wanted) not in network:
            raise AwsError(
                "InvalidParameterValue", f"Address {wanted} does not fall within the subnet's address range"
            )
        if not request.store.take(space, wanted, owner):
            raise AwsError("InvalidIPAddress.InUse", f"Address {wanted} is in use.")
        return wanted
    for _ in range(last - FIRST + 1):
        offset = FIRST + (request.store.count(f"next {space}") - 1) % (last - FIRST + 1)
        if request.store.take(space, str(network[offset]), owner):
            return str(network[offset])
    raise no_free(subnet["SubnetId"])


def no_free(subnet_id: str) -> AwsError:
    return AwsError(
        "InsufficientFreeAddressesInSubnet",
        f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of "
        f"instances.",
    )


def _with_free(request: Request, subnet: Doc) -> Doc:
    return {**public(subnet), "AvailableIpAddressCount": free_addresses(request, subnet)}


SUBNET_FIELDS = {
    "subnet-id": path("SubnetId"),
    "vpc-id": path("VpcId"),
    "cidr-block": path("CidrBlock"),
    "cidrBlock": path("CidrBlock"),
    "availability-zone": path("AvailabilityZone"),
    "availabilityZone": path("AvailabilityZone"),
    "availability-zone-id": path("AvailabilityZoneId"),
    "default-for-az": path("DefaultForAz"),
    "state": path("State"),
    "map-public-ip-on-launch": path("MapPublicIpOnLaunch"),
    "available-ip-address-count": path("AvailableIpAddressCount"),
}


@action("DescribeSubnets")
def describe_subnets(request: Request) -> Doc:
    default_vpc(request)
    found = select(request, "subnet", SUBNET_FIELDS, ids=request.get("SubnetIds") or ())
    return page(request, "Subnets", [_with_free(request, subnet) for subnet in found])


@action("ModifySubnetAttribute")
def modify_subnet_attribute(request: Request) -> Doc:
    subnet = request.thing("subnet", request["SubnetId"])
    for name in ("MapPublicIpOnLaunch", "AssignIpv6AddressOnCreation", "EnableDns64"):
        if request.get(name) is not None:
            subnet[name] = bool(request[name].get("Value"))
    request.add(subnet["SubnetId"], "subnet", subnet)
    return {}


@action("DeleteSubnet")
def delete_subnet(request: Request) -> Doc:
    subnet = request.thing("subnet", request["SubnetId"])
    if request.store.referrers(subnet["SubnetId"], "in") or request.store.taken(
        f"addresses {subnet['SubnetId']}"
    ):
        raise AwsError(
            "DependencyViolation",
            f"The subnet '{subnet['SubnetId']}' has dependencies and cannot be deleted.",
        )
    for table_id, role in request.store.referrers(subnet["SubnetId"]):
        # Deleting a subnet ends its association with a route table.
        table = request.store.get(table_id, "route-table")
        if table:
            table["Associations"] = [
                a for a in table["Associations"] if a.get("SubnetId") != subnet["SubnetId"]
            ]
            request.add(table_id, "route-table", table)
        request.store.unrefer(table_id, role, subnet["SubnetId"])
    request.store.remove(subnet["SubnetId"])
    return {}


# -- internet gateways -------------------------------------------------------------------------------------


@action("CreateInternetGateway")
def create_internet_gateway(request: Request) -> Doc:
    default_vpc(request)
    if request.store.tally("internet-gateway", request.region) >= request.cloud.quota("L-A4707A72"):
        raise AwsError(
            "InternetGatewayLimitExceeded", "The maximum number of internet gateways has been reached."
        )
    gateway = request.cloud.new_id("igw")
    doc: Doc = {
        "InternetGatewayId": gateway,
        "OwnerId": account_of(request),
        "Attachments": [],
        "Tags": request.tags_for("internet-gateway"),
    }
    return {"InternetGateway": request.add(gateway, "internet-gateway", doc)}


@action("AttachInternetGateway")
def attach_internet_gateway(request: Request) -> Doc:
    gateway = request.thing("internet-gateway", request["InternetGatewayId"])
    vpc = request.thing("vpc", request["VpcId"])
    if gateway["Attachments"]:
        other = gateway["Attachments"][0]["VpcId"]
        raise AwsError(
            "Resource.AlreadyAssociated",
            f"resource {gateway['InternetGatewayId']} is already attached to network {other}",
        )
    if request.store.referrers(vpc["VpcId"], "attached"):
        raise AwsError(
            "InvalidParameterValue", f"Network {vpc['VpcId']} already has an internet gateway attached"
        )
    gateway["Attachments"] = [{"State": "available", "VpcId": vpc["VpcId"]}]
    request.add(gateway["InternetGatewayId"], "internet-gateway", gateway)
    request.store.refer(gateway["InternetGatewayId"], vpc["VpcId"], "attached")
    return {}


@action("DetachInternetGateway")
def detach_internet_gateway(request: Request) -> Doc:
    gateway = request.thing("internet-gateway", request["InternetGatewayId"])
    vpc_id = request["VpcId"]
    if not any(a["VpcId"] == vpc_id for a in gateway["Attachments"]):
        raise AwsError(
            "Gateway.NotAttached",
            f"resource {gateway['InternetGatewayId']} is not attached to network {vpc_id}",
        )
    if request.store.weight(vpc_id, "public address"):
        raise AwsError(
            "DependencyViolation",
            f"Network {vpc_id} has some mapped public address(es). Please unmap those public address(es) "
            f"before "
            "detaching the gateway.",
        )
    gateway["Attachments"] = []
    request.add(gateway["InternetGatewayId"], "internet-gateway", gateway)
    request.store.unrefer(gateway["InternetGatewayId"], "attached")
    return {}


@action("DescribeInternetGateways")
def describe_internet_gateways(request: Request) -> Doc:
    default_vpc(request)
    fields = {
        "internet-gateway-id": path("InternetGatewayId"),
        "attachment.vpc-id": path("Attachments", "VpcId"),
        "attachment.state": path("Attachments", "State"),
        "owner-id": path("OwnerId"),
    }
    found = select(request, "internet-gateway", fields, ids=request.get("InternetGatewayIds") or ())
    return page(request, "InternetGateways", found)


@action("DeleteInternetGateway")
def delete_internet_gateway(request: Request) -> Doc:
    gateway = request.thing("internet-gateway", request["InternetGatewayId"])
    if gateway["Attachments"]:
        raise AwsError(
            "DependencyViolation",
            f"The internetGateway '{gateway['InternetGatewayId']}' has dependencies and cannot be deleted.",
        )
    request.store.remove(gateway["InternetGatewayId"])
    return {}


# -- NAT gateways ------------------------------------------------------------------------------------------


@action("CreateNatGateway")
def create_nat_gateway(request: Request) -> Doc:
    from orch.providers.simulated.aws.addresses import attach_address, make_interface

    subnet = request.thing("subnet", request["SubnetId"])
    zone = subnet["AvailabilityZone"]
    here = [doc for _, doc in request.store.each("natgateway", request.region) if doc.get("_zone") == zone]
    if len(here) >= request.cloud.quota("L-FE5A380F"):
        raise AwsError(
            "NatGatewayLimitExceeded", f"The maximum number of NAT gateways in {zone} has been reached."
        )
    private = request.get("ConnectivityType", "public") == "private"
    if not private and not request.get("AllocationId"):
        raise AwsError("MissingParameter", "The request must contain the parameter AllocationId")
    nat = request.cloud.new_id("nat")
    now = request.cloud.now()
    doc: Doc = {
        "NatGatewayId": nat,
        "SubnetId": subnet["SubnetId"],
        "VpcId": subnet["VpcId"],
        "ConnectivityType": "private" if private else "public",
        "CreateTime": stamp(now),
        "State": "pending",
        "NatGatewayAddresses": [],
        "Tags": request.tags_for("natgateway"),
        "_zone": zone,
        "_ready": now + request.cloud.knobs_now().pending_s,
    }
    attached = request.store.referrers(subnet["VpcId"], "attached")
    if not private and not attached:
        # The call succeeds and the gateway fails afterwards (NAT gateway guide, "creation fails").
        doc |= {
            "State": "failed",
            "FailureCode": "Gateway.NotAttached",
            "FailureMessage": f"Network {subnet['VpcId']} has no Internet gateway attached",
        }
        request.add(nat, "natgateway", doc)
        return {"NatGateway": public(doc)}
    address = None if private else request.thing("elastic-ip", request["AllocationId"])
    if address and address.get("AssociationId"):
        raise AwsError(
            "InvalidAllocationID.InUse",
            f"Elastic IP address [{address['AllocationId']}] is already associated",
        )
    if free_addresses(request, subnet) < 1:
        raise no_free(subnet["SubnetId"])
    interface = make_interface(
        request, subnet, [], owner=nat, kind="nat_gateway", description=f"Interface for NAT Gateway {nat}"
    )
    entry: Doc = {
        "NetworkInterfaceId": interface["NetworkInterfaceId"],
        "PrivateIp": interface["PrivateIpAddress"],
        "IsPrimary": True,
        "Status": "succeeded",
    }
    if address:
        association = attach_address(request, address, interface)
        entry |= {
            "AllocationId": address["AllocationId"],
            "PublicIp": address["PublicIp"],
            "AssociationId": association,
        }
    doc["NatGatewayAddresses"] = [entry]
    request.add(nat, "natgateway", doc)
    request.store.refer(nat, subnet["SubnetId"], "in")
    request.store.refer(nat, subnet["VpcId"], "nat")
    return {"NatGateway": public(doc)}


def nat_now(request: Request, doc: Doc) -> Doc:
    """With the state it has by now."""
    if doc["State"] == "pending" and request.cloud.now() >= doc["_ready"]:
        return {**doc, "State": "available"}
    return doc


@action("DescribeNatGateways")
def describe_nat_gateways(request: Request) -> Doc:
    fields = {
        "nat-gateway-id": path("NatGatewayId"),
        "state": path("State"),
        "subnet-id": path("SubnetId"),
        "vpc-id": path("VpcId"),
    }
    docs = [nat_now(request, doc) for _, doc in request.store.each("natgateway", request.region, gone=True)]
    ids = request.get("NatGatewayIds") or ()
    found = select(request, "natgateway", fields, ids=ids, id_field="NatGatewayId", docs=docs)
    return page(request, "NatGateways", found)


@action("DeleteNatGateway")
def delete_nat_gateway(request: Request) -> Doc:
    from orch.providers.simulated.aws.addresses import detach_address, remove_interface

    nat = request.store.get(request["NatGatewayId"], "natgateway")
    if nat is None:
        raise missing("natgateway", request["NatGatewayId"])
    for entry in nat["NatGatewayAddresses"]:
        if entry.get("AllocationId"):
            detach_address(request, request.thing("elastic-ip", entry["AllocationId"]))
        remove_interface(request, entry["NetworkInterfaceId"])
    nat |= {"State": "deleted", "DeleteTime": stamp(request.cloud.now())}
    request.add(nat["NatGatewayId"], "natgateway", nat)
    request.store.end(nat["NatGatewayId"])
    return {"NatGatewayId": nat["NatGatewayId"]}


# -- endpoints ---------------------------------------------------------------------------------------------


@action("CreateVpcEndpoint")
def create_vpc_endpoint(request: Request) -> Doc:
    from orch.providers.simulated.aws.addresses import make_interface

    vpc = request.thing("vpc", request["VpcId"])
    kind = request.get("VpcEndpointType", "Gateway")
    service = request["ServiceName"]
    if not service.startswith(f"com.amazonaws.{request.region}."):
        raise AwsError("InvalidServiceName", f"The Vpc Endpoint Service '{service}' does not exist")
    if (
        kind == "Interface"
        and request.get("PrivateDnsEnabled", True)
        and not (vpc["_dns_support"] and vpc["_dns_hostnames"])
    ):
        raise AwsError(
            "InvalidParameter",
            "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set "
            "to true "
            f"for {vpc['VpcId']}",
        )
    endpoint = request.cloud.new_id("vpce")
    subnets = [request.thing("subnet", subnet) for subnet in request.get("SubnetIds") or ()]
    if len({subnet["AvailabilityZone"] for subnet in subnets}) < len(subnets):
        raise AwsError(
            "DuplicateSubnetsInSameZone", "Found another VPC endpoint subnet in the same Availability Zone"
        )
    groups = request.get("SecurityGroupIds") or ([vpc["_group"]] if kind == "Interface" else [])
    for group in groups:
        request.thing("security-group", group)
    interfaces = []
    for subnet in subnets:
        if free_addresses(request, subnet) < 1:
            raise no_free(subnet["SubnetId"])
        made = make_interface(request, subnet, groups, owner=endpoint, kind="vpc_endpoint")
        interfaces.append(made["NetworkInterfaceId"])
    doc: Doc = {
        "VpcEndpointId": endpoint,
        "VpcEndpointType": kind,
        "VpcId": vpc["VpcId"],
        "ServiceName": service,
        "State": "available",
        "RouteTableIds": list(request.get("RouteTableIds") or ()),
        "SubnetIds": [subnet["SubnetId"] for subnet in subnets],
        "Groups": [
            {"GroupId": group, "GroupName": request.thing("security-group", group)["GroupName"]}
            for group in groups
        ],
        "PrivateDnsEnabled": kind == "Interface" and request.get("PrivateDnsEnabled", True),
        "RequesterManaged": False,
        "NetworkInterfaceIds": interfaces,
        "DnsEntries": [],
        "PolicyDocument": request.get("PolicyDocument")
        or '{"Statement":[{"Action":"*","Effect":"Allow","Principal":"*","Resource":"*"}]}',
        "CreationTimestamp": stamp(request.cloud.now()),
        "OwnerId": account_of(request),
        "Tags": request.tags_for("vpc-endpoint"),
    }
    request.add(endpoint, "vpc-endpoint", doc)
    request.store.refer(endpoint, vpc["VpcId"], "endpoint")
    for group in groups:
        request.store.refer(endpoint, group, "group")
    return {"VpcEndpoint": public(doc)}


@action("DescribeVpcEndpoints")
def describe_vpc_endpoints(request: Request) -> Doc:
    fields = {
        "vpc-endpoint-id": path("VpcEndpointId"),
        "vpc-id": path("VpcId"),
        "service-name": path("ServiceName"),
        "vpc-endpoint-type": path("VpcEndpointType"),
        "vpc-endpoint-state": path("State"),
    }
    found = select(request, "vpc-endpoint", fields, ids=request.get("VpcEndpointIds") or ())
    return page(request, "VpcEndpoints", found)


@action("ModifyVpcEndpoint")
def modify_vpc_endpoint(request: Request) -> Doc:
    doc = request.thing("vpc-endpoint", request["VpcEndpointId"])
    removed = set(request.get("RemoveRouteTableIds") or ())
    doc["RouteTableIds"] = [
        *(table for table in doc["RouteTableIds"] if table not in removed),
        *(request.get("AddRouteTableIds") or ()),
    ]
    if request.get("PolicyDocument"):
        doc["PolicyDocument"] = request["PolicyDocument"]
    request.add(doc["VpcEndpointId"], "vpc-endpoint", doc)
    return {"Return": True}


@action("DeleteVpcEndpoints")
def delete_vpc_endpoints(request: Request) -> Doc:
    from orch.providers.simulated.aws.addresses import remove_interface

    refused: list[Doc] = []
    for endpoint in request["VpcEndpointIds"]:
        doc = request.store.get(endpoint, "vpc-endpoint")
        if doc is None:
            error = missing("vpc-endpoint", endpoint)
            refused.append({"ResourceId": endpoint, "Error": {"Code": error.code, "Message": error.message}})
            continue
        for interface in doc["NetworkInterfaceIds"]:
            remove_interface(request, interface)
        request.store.remove(endpoint)
    return {"Unsuccessful": refused}
