"""Subnets and the addresses in them. Sources: rehearsal/README.md, "Network"."""

from __future__ import annotations

import ipaddress

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.data.tables import regions
from orch.rehearsal.store import Doc

RESERVED = 5
"""AWS reserves the first four addresses and the last one of each subnet."""

FIRST = 4


def cidr_of(text: str, name: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        raise AwsError(
            "InvalidParameterValue",
            f"Value ({text}) for parameter {name} is invalid. This is not a valid CIDR block.",
        ) from None


def make_subnet(
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
        "OwnerId": request.owner,
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
    """The name and id of a zone of the request's region."""
    zones = regions()[request.region]
    zone = next((z for z in zones if name == z.name or (name is None and zone_id == z.id)), None)
    if zone is None:
        names = ", ".join(z.name for z in zones)
        raise AwsError(
            "InvalidParameterValue",
            f"Value ({name or zone_id}) for parameter availabilityZone is invalid. "
            f"Subnets can currently only be created in the following availability zones: {names}.",
        )
    return zone.name, zone.id


@action("CreateSubnet")
def create_subnet(request: Request) -> Doc:
    vpc = request.thing("vpc", request["VpcId"])
    cidr = cidr_of(request["CidrBlock"], "CidrBlock")
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
    subnet = make_subnet(request, vpc, str(cidr), (name, zone_id), tags=request.tags_for("subnet"))
    return {"Subnet": _with_free(request, subnet)}


def free_addresses(request: Request, subnet: Doc) -> int:
    size = ipaddress.IPv4Network(subnet["CidrBlock"]).num_addresses
    return size - RESERVED - request.store.taken(f"addresses {subnet['SubnetId']}")


def take_address(request: Request, subnet: Doc, owner: str, address: str | None = None) -> str:
    """Take an address of the subnet for an interface. The caller has checked `free_addresses` first."""
    network = ipaddress.IPv4Network(subnet["CidrBlock"])
    space = f"addresses {subnet['SubnetId']}"
    last = network.num_addresses - 2
    if address:
        if ipaddress.IPv4Address(address) not in network:
            raise AwsError(
                "InvalidParameterValue", f"Address {address} does not fall within the subnet's address range"
            )
        if not request.store.take(space, address, owner):
            raise AwsError("InvalidIPAddress.InUse", f"Address {address} is in use.")
        return address
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
    matches = select(request, "subnet", SUBNET_FIELDS, ids=request.get("SubnetIds") or ())
    return page(request, "Subnets", [_with_free(request, subnet) for subnet in matches])


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
