"""Internet and NAT gateways. Sources: rehearsal/README.md, "Network"."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select, stamp
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.aws.api.network.subnets import free_addresses, no_free
from orch.rehearsal.store import Doc


@action("CreateInternetGateway")
def create_internet_gateway(request: Request) -> Doc:
    if request.store.tally("internet-gateway", request.region) >= request.cloud.quota("L-A4707A72"):
        raise AwsError(
            "InternetGatewayLimitExceeded", "The maximum number of internet gateways has been reached."
        )
    gateway = request.cloud.new_id("igw")
    doc: Doc = {
        "InternetGatewayId": gateway,
        "OwnerId": request.owner,
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
    fields = {
        "internet-gateway-id": path("InternetGatewayId"),
        "attachment.vpc-id": path("Attachments", "VpcId"),
        "attachment.state": path("Attachments", "State"),
        "owner-id": path("OwnerId"),
    }
    matches = select(request, "internet-gateway", fields, ids=request.get("InternetGatewayIds") or ())
    return page(request, "InternetGateways", matches)


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
    from orch.rehearsal.aws.api.network.addresses import attach_address, make_interface

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
    gateways = request.store.referrers(subnet["VpcId"], "attached")
    if not private and not gateways:
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
    """A NAT gateway with its current state."""
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
    matches = select(request, "natgateway", fields, ids=ids, id_field="NatGatewayId", docs=docs)
    return page(request, "NatGateways", matches)


@action("DeleteNatGateway")
def delete_nat_gateway(request: Request) -> Doc:
    from orch.rehearsal.aws.api.network.addresses import detach_address, remove_interface

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
