"""Route tables and their routes as Pulumi resources."""

from __future__ import annotations

from collections.abc import Mapping

from orch.rehearsal.aws.resources.kinds import Api, Kind, Listed, Props, first, specification
from orch.rehearsal.store import Doc

ROUTE_TARGETS = {
    "gatewayId": "GatewayId",
    "natGatewayId": "NatGatewayId",
    "networkInterfaceId": "NetworkInterfaceId",
    "vpcEndpointId": "VpcEndpointId",
}


def _targets(inputs: Props) -> dict[str, str]:
    return {name: inputs[key] for key, name in ROUTE_TARGETS.items() if inputs.get(key)}


class RouteTable(Listed):
    label = "EC2 Route Table"
    name = "RouteTable"
    id_name = "RouteTableId"
    gone = ("InvalidRouteTableID.NotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "CreateRouteTable", VpcId=inputs["vpcId"], TagSpecifications=specification("route-table", tags)
        )
        table = response["RouteTable"]["RouteTableId"]
        for route in inputs.get("routes") or ():
            api(
                "CreateRoute",
                RouteTableId=table,
                DestinationCidrBlock=route.get("cidrBlock"),
                **_targets(route),
            )
        return table

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        routes = [
            {
                "cidrBlock": route["DestinationCidrBlock"],
                **{key: route.get(name, "") for key, name in ROUTE_TARGETS.items()},
            }
            for route in doc["Routes"]
            if route["Origin"] == "CreateRoute"
        ]
        return {
            "arn": f"arn:aws:ec2:{api.region}:{doc['OwnerId']}:route-table/{resource_id}",
            "ownerId": doc["OwnerId"],
            "vpcId": doc["VpcId"],
            "propagatingVgws": [],
            "routes": routes,
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if "routes" not in changed:
            return
        before = {route["cidrBlock"]: route for route in state.get("routes") or ()}
        after = {route["cidrBlock"]: route for route in inputs.get("routes") or ()}
        for cidr in before.keys() - after.keys():
            not_found = ("InvalidRoute.NotFound",)
            api.removed("DeleteRoute", not_found, RouteTableId=resource_id, DestinationCidrBlock=cidr)
        for cidr, route in after.items():
            action = "ReplaceRoute" if cidr in before else "CreateRoute"
            if cidr not in before or _targets(route) != _targets(before[cidr]):
                api(action, RouteTableId=resource_id, DestinationCidrBlock=cidr, **_targets(route))

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        doc = self.find(api, resource_id)
        for one in (doc or {}).get("Associations") or ():
            not_associated = ("InvalidAssociationID.NotFound",)
            api.removed(
                "DisassociateRouteTable", not_associated, AssociationId=one["RouteTableAssociationId"]
            )
        super().delete(api, resource_id, state)


class Route(Kind):
    label = "EC2 Route"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        table, cidr = inputs["routeTableId"], inputs.get("destinationCidrBlock")
        api("CreateRoute", RouteTableId=table, DestinationCidrBlock=cidr, **_targets(inputs))
        return f"r-{table}-{cidr}"

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        not_found = ("InvalidRouteTableID.NotFound",)
        doc = first(
            api, "DescribeRouteTables", "RouteTables", not_found, RouteTableIds=[state["routeTableId"]]
        )
        for route in (doc or {}).get("Routes") or ():
            if route["DestinationCidrBlock"] == state.get("destinationCidrBlock"):
                return {
                    **{key: route.get(name, "") for key, name in ROUTE_TARGETS.items()},
                    "routeTableId": state["routeTableId"],
                    "destinationCidrBlock": route["DestinationCidrBlock"],
                    "instanceId": "",
                    "instanceOwnerId": "",
                    "origin": route["Origin"],
                    "state": route["State"],
                }
        return None

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        table, cidr = inputs["routeTableId"], inputs.get("destinationCidrBlock")
        api("ReplaceRoute", RouteTableId=table, DestinationCidrBlock=cidr, **_targets(inputs))

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        table, cidr = state["routeTableId"], state.get("destinationCidrBlock")
        not_found = ("InvalidRoute.NotFound", "InvalidRouteTableID.NotFound")
        api.removed("DeleteRoute", not_found, RouteTableId=table, DestinationCidrBlock=cidr)


class RouteTableAssociation(Kind):
    label = "EC2 Route Table Association"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        response = api(
            "AssociateRouteTable", RouteTableId=inputs["routeTableId"], SubnetId=inputs.get("subnetId")
        )
        return response["AssociationId"]

    def imported_id(self, api: Api, resource_id: str) -> str:
        """An association is imported as `SUBNET/TABLE`. Source: registry.terraform.io,
        aws_route_table_association, "Import"."""
        subnet, _, table = resource_id.partition("/")
        filters = [{"Name": "association.subnet-id", "Values": [subnet]}]
        doc = first(api, "DescribeRouteTables", "RouteTables", (), Filters=filters)
        for one in (doc or {}).get("Associations") or ():
            if (one.get("SubnetId"), one["RouteTableId"]) == (subnet, table):
                return str(one["RouteTableAssociationId"])
        return resource_id

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        filters = [{"Name": "association.route-table-association-id", "Values": [resource_id]}]
        doc = first(api, "DescribeRouteTables", "RouteTables", (), Filters=filters)
        for one in (doc or {}).get("Associations") or ():
            if one["RouteTableAssociationId"] == resource_id:
                return {"routeTableId": one["RouteTableId"], "subnetId": one.get("SubnetId", "")}
        return None

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed("DisassociateRouteTable", ("InvalidAssociationID.NotFound",), AssociationId=resource_id)


TYPES: Mapping[str, Kind] = {
    "aws:ec2/routeTable:RouteTable": RouteTable(),
    "aws:ec2/route:Route": Route(),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": RouteTableAssociation(),
}
