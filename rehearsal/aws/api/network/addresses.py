"""Network interfaces and Elastic IP addresses. Sources: rehearsal/README.md, "Addresses"."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select, stamp
from orch.rehearsal.aws.api.compute.capacity import state_of
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.aws.api.network.interfaces import InterfaceRequest
from orch.rehearsal.aws.api.network.security_groups import group_named
from orch.rehearsal.aws.api.network.subnets import take_address
from orch.rehearsal.store import Doc

PUBLIC = ipaddress.IPv4Network("198.18.0.0/15")
"""The range of public addresses: RFC 2544's range for benchmarks, which is not routed."""


def public_address(request: Request) -> str:
    return str(PUBLIC[request.store.count("public address") % PUBLIC.num_addresses])


def public_name(request: Request, address: str) -> str:
    zone = "compute-1" if request.region == "us-east-1" else f"{request.region}.compute"
    return f"ec2-{address.replace('.', '-')}.{zone}.amazonaws.com"


def private_name(request: Request, address: str) -> str:
    zone = "ec2" if request.region == "us-east-1" else f"{request.region}.compute"
    return f"ip-{address.replace('.', '-')}.{zone}.internal"


def check_interface_quota(request: Request, more: int) -> None:
    if request.store.tally("network-interface", request.region) + more > request.cloud.quota("L-DF5E4CA3"):
        raise AwsError(
            "NetworkInterfaceLimitExceeded", "The maximum number of network interfaces has been reached."
        )


def make_interface(
    request: Request,
    subnet: Doc,
    groups: Sequence[str],
    *,
    owner: str,
    kind: str = "interface",
    description: str = "",
    address: str | None = None,
    attachment: Doc | None = None,
) -> Doc:
    """Create a network interface in a subnet. An `efa-only` one takes no address."""
    interface = request.cloud.new_id("eni")
    digest = interface[-10:]
    doc: Doc = {
        "NetworkInterfaceId": interface,
        "SubnetId": subnet["SubnetId"],
        "VpcId": subnet["VpcId"],
        "AvailabilityZone": subnet["AvailabilityZone"],
        "OwnerId": request.owner,
        "InterfaceType": kind,
        "Description": description,
        "Status": "in-use",
        "MacAddress": ":".join(["02", *(digest[i : i + 2] for i in range(0, 10, 2))]),
        "SourceDestCheck": kind == "interface",
        "Groups": group_named(request, list(groups)),
        "PrivateIpAddresses": [],
        "_owner": owner,
    }
    if kind != "efa-only":
        private_ip = take_address(request, subnet, interface, address)
        doc |= {
            "PrivateIpAddress": private_ip,
            "PrivateDnsName": private_name(request, private_ip),
            "PrivateIpAddresses": [{"Primary": True, "PrivateIpAddress": private_ip}],
        }
    if attachment:
        doc["Attachment"] = attachment
    request.add(interface, "network-interface", doc)
    request.store.refer(interface, subnet["SubnetId"], "in")
    for group in groups:
        request.store.refer(interface, group, "group")
    return doc


def attach_interface(request: Request, subnet: Doc, one: InterfaceRequest, instance: str, now: float) -> Doc:
    """Create an interface of a launch; as the instance's document has it."""
    attachment: Doc = {
        "AttachTime": stamp(now),
        "AttachmentId": request.cloud.new_id("eni-attach"),
        "DeleteOnTermination": one.delete,
        "DeviceIndex": one.device,
        "NetworkCardIndex": one.card,
        "Status": "attached",
    }
    interface = make_interface(
        request,
        subnet,
        one.groups,
        owner=instance,
        kind=one.kind,
        description=one.description,
        address=one.address,
        attachment={**attachment, "InstanceId": instance},
    )
    description = {**public(interface), "Attachment": attachment}
    if one.public and one.kind != "efa-only" and (one.card, one.device) == (0, 0):
        address = public_address(request)
        description["Association"] = {
            "IpOwnerId": "amazon",
            "PublicIp": address,
            "PublicDnsName": public_name(request, address),
        }
    description.pop("AvailabilityZone", None)
    return description


def remove_interface(request: Request, interface: str) -> None:
    request.store.remove(interface)


@action("DescribeNetworkInterfaces")
def describe_network_interfaces(request: Request) -> Doc:
    fields = {
        "network-interface-id": path("NetworkInterfaceId"),
        "subnet-id": path("SubnetId"),
        "vpc-id": path("VpcId"),
        "group-id": path("Groups", "GroupId"),
        "attachment.instance-id": path("Attachment", "InstanceId"),
        "attachment.device-index": path("Attachment", "DeviceIndex"),
        "interface-type": path("InterfaceType"),
        "private-ip-address": path("PrivateIpAddress"),
        "status": path("Status"),
    }
    matches = select(request, "network-interface", fields, ids=request.get("NetworkInterfaceIds") or ())
    return page(request, "NetworkInterfaces", matches)


# -- Elastic IP addresses ----------------------------------------------------------------------------------


@action("AllocateAddress")
def allocate_address(request: Request) -> Doc:
    if request.store.tally("elastic-ip", request.region) >= request.cloud.quota("L-0263D0A3"):
        raise AwsError("AddressLimitExceeded", "The maximum number of addresses has been reached.")
    allocation = request.cloud.new_id("eipalloc")
    doc: Doc = {
        "AllocationId": allocation,
        "PublicIp": public_address(request),
        "Domain": "vpc",
        "PublicIpv4Pool": "amazon",
        "NetworkBorderGroup": request.region,
        "Tags": request.tags_for("elastic-ip"),
    }
    request.add(allocation, "elastic-ip", doc, doc["PublicIp"])
    return {
        key: doc[key]
        for key in ("AllocationId", "PublicIp", "Domain", "PublicIpv4Pool", "NetworkBorderGroup")
    }


def attach_address(request: Request, address: Doc, interface: Doc, instance: str | None = None) -> str:
    association = request.cloud.new_id("eipassoc")
    address |= {
        "AssociationId": association,
        "NetworkInterfaceId": interface["NetworkInterfaceId"],
        "NetworkInterfaceOwnerId": request.owner,
        "PrivateIpAddress": interface["PrivateIpAddress"],
    }
    if instance:
        address["InstanceId"] = instance
    request.add(address["AllocationId"], "elastic-ip", address)
    request.store.refer(address["AllocationId"], interface["VpcId"], "public address")
    request.store.refer(address["AllocationId"], interface["NetworkInterfaceId"], "address")
    _show(request, interface["NetworkInterfaceId"], instance, address)
    return association


def detach_address(request: Request, address: Doc) -> None:
    interface, instance = address.get("NetworkInterfaceId"), address.get("InstanceId")
    for key in (
        "AssociationId",
        "NetworkInterfaceId",
        "NetworkInterfaceOwnerId",
        "PrivateIpAddress",
        "InstanceId",
    ):
        address.pop(key, None)
    request.add(address["AllocationId"], "elastic-ip", address)
    request.store.release(address["AllocationId"])
    if interface:
        _show(request, interface, instance, None)


def detach_from(request: Request, interface: str) -> None:
    """Detach the Elastic IP address of an interface; it stays allocated, without an association."""
    for source, _ in request.store.referrers(interface, "address"):
        detach_address(request, request.thing("elastic-ip", source))


def _show(request: Request, interface: str, instance: str | None, address: Doc | None) -> None:
    """Write a public address into the documents of an interface and its instance."""
    association: Doc | None = None
    if address:
        association = {
            "AllocationId": address["AllocationId"],
            "AssociationId": address["AssociationId"],
            "IpOwnerId": request.owner,
            "PublicIp": address["PublicIp"],
            "PublicDnsName": public_name(request, address["PublicIp"]),
        }
    doc = request.store.get(interface, "network-interface")
    if doc:
        _set(doc, "Association", association)
        request.add(interface, "network-interface", doc)
    machine = request.store.get(instance, "instance") if instance else None
    if machine:
        for one in machine["NetworkInterfaces"]:
            if one["NetworkInterfaceId"] == interface:
                _set(one, "Association", association)
        _set(machine, "PublicIpAddress", address and address["PublicIp"])
        machine["PublicDnsName"] = public_name(request, address["PublicIp"]) if address else ""
        request.add(machine["InstanceId"], "instance", machine)


def _set(doc: Doc, key: str, value: Any) -> None:
    if value is None:
        doc.pop(key, None)
    else:
        doc[key] = value


@action("AssociateAddress")
def associate_address(request: Request) -> Doc:
    if request.get("AllocationId"):
        address = request.thing("elastic-ip", request["AllocationId"])
    else:
        allocation = request.store.find("elastic-ip", request["PublicIp"], request.region)
        if allocation is None:
            raise AwsError("InvalidAddress.NotFound", f"Address '{request['PublicIp']}' not found.")
        address = request.thing("elastic-ip", allocation)
    instance_id = request.get("InstanceId")
    if instance_id:
        instance = request.thing("instance", instance_id)
        if len(instance["NetworkInterfaces"]) > 1:
            raise AwsError(
                "InvalidInstanceID",
                f"There are multiple interfaces attached to instance '{instance_id}'. Please specify an "
                f"interface ID "
                "for the operation instead.",
            )
        interface = request.thing("network-interface", instance["NetworkInterfaces"][0]["NetworkInterfaceId"])
    elif request.get("NetworkInterfaceId"):
        interface = request.thing("network-interface", request["NetworkInterfaceId"])
        instance_id = (interface.get("Attachment") or {}).get("InstanceId")
        instance = request.thing("instance", instance_id) if instance_id else None
    else:
        raise AwsError("MissingParameter", "Either 'networkInterfaceId' or 'instanceId' must be specified")
    if instance is not None and state_of(request, instance) not in {"running", "stopped"}:
        raise AwsError(
            "IncorrectInstanceState",
            f"The {state_of(request, instance)} instance '{instance_id}' is not in a valid state for this "
            f"operation.",
        )
    if interface["InterfaceType"] == "efa-only":
        raise AwsError(
            "InvalidParameterValue",
            f"The networkInterface ID '{interface['NetworkInterfaceId']}' has no IP address",
        )
    if not request.store.referrers(interface["VpcId"], "attached"):
        raise AwsError(
            "Gateway.NotAttached", f"Network {interface['VpcId']} is not attached to any internet gateway"
        )
    if address.get("AssociationId"):
        if address["NetworkInterfaceId"] == interface["NetworkInterfaceId"]:
            return {"AssociationId": address["AssociationId"]}
        if not request.get("AllowReassociation", False):
            raise AwsError(
                "Resource.AlreadyAssociated",
                f"resource {address['AllocationId']} is already associated with associate-id "
                f"{address['AssociationId']}",
            )
        detach_address(request, address)
    detach_from(request, interface["NetworkInterfaceId"])
    return {"AssociationId": attach_address(request, address, interface, instance_id)}


def _by_association(request: Request, association: str) -> Doc:
    for _, doc in request.store.each("elastic-ip", request.region):
        if doc.get("AssociationId") == association:
            return doc
    raise AwsError("InvalidAssociationID.NotFound", f"The association ID '{association}' does not exist")


@action("DisassociateAddress")
def disassociate_address(request: Request) -> Doc:
    detach_address(request, _by_association(request, request["AssociationId"]))
    return {}


@action("DescribeAddresses")
def describe_addresses(request: Request) -> Doc:
    fields = {
        "allocation-id": path("AllocationId"),
        "association-id": path("AssociationId"),
        "instance-id": path("InstanceId"),
        "network-interface-id": path("NetworkInterfaceId"),
        "public-ip": path("PublicIp"),
        "domain": path("Domain"),
    }
    ids: list[str] = list(request.get("AllocationIds") or ())
    for address in request.get("PublicIps") or ():
        allocation = request.store.find("elastic-ip", address, request.region)
        if allocation is None:
            raise AwsError("InvalidAddress.NotFound", f"Address '{address}' not found.")
        ids.append(allocation)
    found_docs = select(request, "elastic-ip", fields, ids=ids)
    return {"Addresses": [public(doc) for doc in found_docs]}


@action("ReleaseAddress")
def release_address(request: Request) -> Doc:
    address = request.store.get(request["AllocationId"], "elastic-ip")
    if address is None:
        raise missing("elastic-ip", request["AllocationId"])
    if address.get("AssociationId"):
        raise AwsError("InvalidIPAddress.InUse", f"Address {address['PublicIp']} is in use.")
    request.store.remove(address["AllocationId"])
    return {}
