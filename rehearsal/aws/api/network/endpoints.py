"""VPC endpoints. Sources: rehearsal/README.md, "Network"."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select, stamp
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.aws.api.network.subnets import free_addresses, no_free
from orch.rehearsal.store import Doc


@action("CreateVpcEndpoint")
def create_vpc_endpoint(request: Request) -> Doc:
    from orch.rehearsal.aws.api.network.addresses import make_interface

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
        interface = make_interface(request, subnet, groups, owner=endpoint, kind="vpc_endpoint")
        interfaces.append(interface["NetworkInterfaceId"])
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
        "OwnerId": request.owner,
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
    matches = select(request, "vpc-endpoint", fields, ids=request.get("VpcEndpointIds") or ())
    return page(request, "VpcEndpoints", matches)


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
    from orch.rehearsal.aws.api.network.addresses import remove_interface

    failures: list[Doc] = []
    for endpoint in request["VpcEndpointIds"]:
        doc = request.store.get(endpoint, "vpc-endpoint")
        if doc is None:
            error = missing("vpc-endpoint", endpoint)
            failures.append({"ResourceId": endpoint, "Error": {"Code": error.code, "Message": error.message}})
            continue
        for interface in doc["NetworkInterfaceIds"]:
            remove_interface(request, interface)
        request.store.remove(endpoint)
    return {"Unsuccessful": failures}
