"""Route tables, their routes and associations. Sources: rehearsal/README.md, "Network"."""

from __future__ import annotations

import ipaddress

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.store import Doc

TARGETS = {
    "GatewayId": ("internet-gateway", "InvalidGatewayID.NotFound"),
    "NatGatewayId": ("natgateway", "InvalidNatGatewayID.NotFound"),
    "NetworkInterfaceId": ("network-interface", "InvalidNetworkInterfaceID.NotFound"),
    "VpcEndpointId": ("vpc-endpoint", "InvalidVpcEndpointId.NotFound"),
}


@action("CreateRouteTable")
def create_route_table(request: Request) -> Doc:
    vpc = request.thing("vpc", request["VpcId"])
    if len(request.store.referrers(vpc["VpcId"], "routes")) + 1 >= request.cloud.quota("L-589F43AA"):
        raise AwsError("RouteTableLimitExceeded", "The maximum number of route tables has been reached.")
    table = request.cloud.new_id("rtb")
    doc: Doc = {
        "RouteTableId": table,
        "VpcId": vpc["VpcId"],
        "OwnerId": request.owner,
        "Associations": [],
        "PropagatingVgws": [],
        "Routes": [
            {
                "DestinationCidrBlock": vpc["CidrBlock"],
                "GatewayId": "local",
                "Origin": "CreateRouteTable",
                "State": "active",
            }
        ],
        "Tags": request.tags_for("route-table"),
    }
    request.add(table, "route-table", doc)
    request.store.refer(table, vpc["VpcId"], "routes")
    return {"RouteTable": public(doc)}


def _destination(request: Request) -> str:
    text = request["DestinationCidrBlock"]
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError:
        raise AwsError(
            "InvalidParameterValue",
            f"Value ({text}) for parameter destinationCidrBlock is invalid. This is not a valid CIDR block.",
        ) from None


def _route(request: Request, table: Doc, destination: str) -> Doc:
    route: Doc = {"DestinationCidrBlock": destination, "Origin": "CreateRoute", "State": "active"}
    for name, (kind, code) in TARGETS.items():
        target = request.get(name)
        if target is None:
            continue
        doc = request.store.get(target, kind)
        if doc is None or doc.get("State") == "deleted":
            raise AwsError(code, f"The {name} '{target}' does not exist")
        at_home = (
            any(a["VpcId"] == table["VpcId"] for a in doc["Attachments"])
            if kind == "internet-gateway"
            else doc["VpcId"] == table["VpcId"]
        )
        if not at_home:
            raise AwsError(
                "InvalidParameterValue",
                f"route table {table['RouteTableId']} and network gateway {target} belong to different "
                f"networks",
            )
        route[name] = target
    if len(route) == 3:
        raise AwsError("MissingParameter", "The request must contain exactly one target of the route")
    return route


@action("CreateRoute")
def create_route(request: Request) -> Doc:
    table = request.thing("route-table", request["RouteTableId"])
    destination = _destination(request)
    if any(route["DestinationCidrBlock"] == destination for route in table["Routes"]):
        raise AwsError("RouteAlreadyExists", f"The route identified by {destination} already exists.")
    table["Routes"].append(_route(request, table, destination))
    request.add(table["RouteTableId"], "route-table", table)
    return {"Return": True}


@action("ReplaceRoute")
def replace_route(request: Request) -> Doc:
    table = request.thing("route-table", request["RouteTableId"])
    destination = _destination(request)
    others = _without(table, destination)
    table["Routes"] = [*others, _route(request, table, destination)]
    request.add(table["RouteTableId"], "route-table", table)
    return {}


def _without(table: Doc, destination: str) -> list[Doc]:
    others = [route for route in table["Routes"] if route["DestinationCidrBlock"] != destination]
    if len(others) == len(table["Routes"]):
        raise AwsError(
            "InvalidRoute.NotFound",
            f"no route with destination-cidr-block {destination} in route table {table['RouteTableId']}",
        )
    return others


@action("DeleteRoute")
def delete_route(request: Request) -> Doc:
    table = request.thing("route-table", request["RouteTableId"])
    destination = _destination(request)
    if any(
        r["DestinationCidrBlock"] == destination and r.get("GatewayId") == "local" for r in table["Routes"]
    ):
        raise AwsError(
            "InvalidParameterValue",
            f"cannot remove local route {destination} in route table {table['RouteTableId']}",
        )
    table["Routes"] = _without(table, destination)
    request.add(table["RouteTableId"], "route-table", table)
    return {}


@action("AssociateRouteTable")
def associate_route_table(request: Request) -> Doc:
    table = request.thing("route-table", request["RouteTableId"])
    subnet = request.thing("subnet", request["SubnetId"])
    if request.store.referrers(subnet["SubnetId"], "association"):
        raise AwsError(
            "Resource.AlreadyAssociated",
            f"the specified association for route table {table['RouteTableId']} conflicts with an existing "
            f"association",
        )
    return {"AssociationId": _associate(request, table, subnet), "AssociationState": {"State": "associated"}}


def _associate(request: Request, table: Doc, subnet: Doc) -> str:
    association = request.cloud.new_id("rtbassoc")
    table["Associations"].append(
        {
            "Main": False,
            "RouteTableAssociationId": association,
            "RouteTableId": table["RouteTableId"],
            "SubnetId": subnet["SubnetId"],
            "AssociationState": {"State": "associated"},
        }
    )
    request.add(table["RouteTableId"], "route-table", table)
    request.store.refer(table["RouteTableId"], subnet["SubnetId"], "association")
    return association


def _dissociate(request: Request, association: str) -> Doc:
    """Remove the association of a route table and return its subnet. Raises InvalidAssociationID.NotFound."""
    for table_id, table in request.store.each("route-table", request.region):
        for entry in table["Associations"]:
            if entry["RouteTableAssociationId"] == association and not entry["Main"]:
                table["Associations"].remove(entry)
                request.add(table_id, "route-table", table)
                request.store.unrefer(table_id, "association", entry["SubnetId"])
                return request.thing("subnet", entry["SubnetId"])
    raise AwsError("InvalidAssociationID.NotFound", f"The association ID '{association}' does not exist")


@action("DisassociateRouteTable")
def disassociate_route_table(request: Request) -> Doc:
    _dissociate(request, request["AssociationId"])
    return {}


@action("ReplaceRouteTableAssociation")
def replace_route_table_association(request: Request) -> Doc:
    table = request.thing("route-table", request["RouteTableId"])
    subnet = _dissociate(request, request["AssociationId"])
    table = request.thing("route-table", table["RouteTableId"])
    return {
        "NewAssociationId": _associate(request, table, subnet),
        "AssociationState": {"State": "associated"},
    }


@action("DescribeRouteTables")
def describe_route_tables(request: Request) -> Doc:
    fields = {
        "route-table-id": path("RouteTableId"),
        "vpc-id": path("VpcId"),
        "association.route-table-association-id": path("Associations", "RouteTableAssociationId"),
        "association.route-table-id": path("Associations", "RouteTableId"),
        "association.subnet-id": path("Associations", "SubnetId"),
        "association.main": path("Associations", "Main"),
        "route.destination-cidr-block": path("Routes", "DestinationCidrBlock"),
        "route.gateway-id": path("Routes", "GatewayId"),
        "route.nat-gateway-id": path("Routes", "NatGatewayId"),
        "route.state": path("Routes", "State"),
        "owner-id": path("OwnerId"),
    }
    matches = select(request, "route-table", fields, ids=request.get("RouteTableIds") or ())
    return page(request, "RouteTables", [_with_blackholes(request, table) for table in matches])


def _with_blackholes(request: Request, table: Doc) -> Doc:
    """A route table in which routes without a target are black holes."""
    routes = []
    for route in table["Routes"]:
        target = next((route[name] for name in TARGETS if route.get(name)), "local")
        kind = request.store.get(target)
        deleted = target != "local" and (kind is None or kind.get("State") == "deleted")
        routes.append({**route, "State": "blackhole"} if deleted else route)
    return {**table, "Routes": routes}


@action("DeleteRouteTable")
def delete_route_table(request: Request) -> Doc:
    table = request.thing("route-table", request["RouteTableId"])
    if table["Associations"]:
        raise AwsError(
            "DependencyViolation",
            f"The routeTable '{table['RouteTableId']}' has dependencies and cannot be deleted.",
        )
    request.store.remove(table["RouteTableId"])
    return {}
