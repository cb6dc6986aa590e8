"""Checks the network interfaces of a launch. Sources: rehearsal/README.md, "Network interfaces"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orch.rehearsal.aws.api.actions import Request
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.api.network.security_groups import group_named
from orch.rehearsal.aws.data.tables import Type
from orch.rehearsal.store import Doc

EFA = {"efa", "efa-only"}


@dataclass(frozen=True)
class InterfaceRequest:
    """One checked interface of a launch."""

    card: int
    device: int
    kind: str
    subnet: str | None
    groups: tuple[str, ...]
    public: bool | None
    address: str | None
    delete: bool
    description: str


def launch_interfaces(
    request: Request, kind: Type
) -> tuple[tuple[InterfaceRequest, ...], dict[str, Doc], str]:
    """The interfaces of a launch, their subnets by id, and the zone. Raises EC2's error."""
    rows = request.get("NetworkInterfaces")
    if rows:
        for name, label in (("SubnetId", "subnet ID"), ("SecurityGroupIds", "security groups")):
            if request.get(name):
                raise AwsError(
                    "InvalidParameterCombination",
                    f"Network interfaces and an instance-level {label} may not be specified on the same "
                    f"request",
                )
    else:
        rows = [
            {
                "DeviceIndex": 0,
                "SubnetId": request.get("SubnetId"),
                "Groups": request.get("SecurityGroupIds"),
                "PrivateIpAddress": request.get("PrivateIpAddress"),
            }
        ]
    requested = interfaces(kind, rows)
    zone = (request.get("Placement") or {}).get("AvailabilityZone")
    subnets: dict[str, Doc] = {}
    checked: list[InterfaceRequest] = []
    for one in requested:
        subnet = request.thing("subnet", one.subnet) if one.subnet else _default_subnet(request, zone)
        subnets[subnet["SubnetId"]] = subnet
        for group in one.groups:
            if request.thing("security-group", group)["VpcId"] != subnet["VpcId"]:
                raise AwsError(
                    "InvalidParameter",
                    f"Security group {group} and subnet {subnet['SubnetId']} belong to different networks.",
                )
        group_named(request, list(one.groups))
        groups = one.groups or (request.thing("vpc", subnet["VpcId"])["_group"],)
        public_ip = one.public
        if public_ip is None:
            # An address is given by the subnet's habit to a single interface only.
            public_ip = bool(subnet["MapPublicIpOnLaunch"]) and len(requested) == 1
        checked.append(
            InterfaceRequest(
                one.card,
                one.device,
                one.kind,
                subnet["SubnetId"],
                tuple(groups),
                public_ip,
                one.address,
                one.delete,
                one.description,
            )
        )
    zones = {subnet["AvailabilityZone"] for subnet in subnets.values()}
    if len(zones) > 1:
        raise AwsError(
            "InvalidParameterCombination",
            "All network interfaces of a launch must be in the same Availability Zone",
        )
    subnet_zone = zones.pop()
    if zone and zone != subnet_zone:
        raise AwsError(
            "InvalidParameterValue",
            f"The availability zone '{zone}' is not the one of the subnet ('{subnet_zone}').",
        )
    return tuple(checked), subnets, subnet_zone


def _default_subnet(request: Request, zone: str | None) -> Doc:
    for _, subnet in request.store.each("subnet", request.region):
        if subnet["DefaultForAz"] and zone in (None, subnet["AvailabilityZone"]):
            return subnet
    raise AwsError("VPCIdNotSpecified", "No default VPC for this user")


def interfaces(kind: Type, rows: Sequence[Doc]) -> tuple[InterfaceRequest, ...]:
    """The interfaces of a request or launch template, sorted by card and device. Raises EC2's error for a set
    that it refuses."""
    requested = sorted((_interface(one) for one in rows), key=lambda one: (one.card, one.device))
    places = Counter((one.card, one.device) for one in requested)
    for (card, device), count in places.items():
        if count > 1:
            raise AwsError(
                "InvalidParameterValue",
                f"Each network interface requires a unique device index on its network card: {device} on "
                f"{card}",
            )
    if (0, 0) not in places:
        raise AwsError(
            "InvalidParameterCombination",
            "A primary network interface (network card index 0, device index 0) must be specified",
        )
    if len(requested) > 1 and any(one.public for one in requested):
        raise AwsError(
            "InvalidParameterCombination",
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple "
            "network interfaces.",
        )
    if requested[0].kind == "efa-only":
        raise AwsError(
            "InvalidParameterCombination",
            "An EFA-only network interface cannot be the primary network interface",
        )
    _check_cards(kind, requested)
    return tuple(requested)


def _interface(one: Doc) -> InterfaceRequest:
    if one.get("NetworkInterfaceId"):
        raise AwsError(
            "UnsupportedOperation", "launching with an existing network interface is not simulated"
        )
    kind = one.get("InterfaceType") or "interface"
    if kind not in {"interface", *EFA}:
        raise AwsError("InvalidParameterValue", f"Value ({kind}) for parameter interfaceType is invalid.")
    if "DeviceIndex" not in one:
        raise AwsError("MissingParameter", "Each network interface requires a device index.")
    return InterfaceRequest(
        card=int(one.get("NetworkCardIndex") or 0),
        device=int(one["DeviceIndex"]),
        kind=kind,
        subnet=one.get("SubnetId"),
        groups=tuple(one.get("Groups") or ()),
        public=one.get("AssociatePublicIpAddress"),
        address=one.get("PrivateIpAddress"),
        delete=one.get("DeleteOnTermination", True),
        description=one.get("Description") or "",
    )


def _check_cards(kind: Type, requested: Sequence[InterfaceRequest]) -> None:
    efa = [one for one in requested if one.kind in EFA]
    if efa and not kind.efa:
        raise AwsError("UnsupportedOperation", f"EFA interfaces are not supported on {kind.name}")
    for card, count in sorted(Counter(one.card for one in requested).items()):
        if card >= len(kind.cards):
            raise AwsError(
                "InvalidParameterValue",
                f"Network card index {card} is not valid for {kind.name}, which has {len(kind.cards)} "
                f"network cards",
            )
        limit = kind.cards[card].interfaces
        if count > limit:
            raise AwsError(
                "AttachmentLimitExceeded",
                f"Interface count {count} exceeds the limit for {kind.name} on Network Card {card} limit "
                f"{limit}",
            )
    for one in efa:
        card = kind.cards[one.card]
        if not card.efa:
            raise AwsError(
                "AttachmentLimitExceeded",
                f"EFA interface count 1 exceeds the limit for {kind.name} on Network Card {one.card} limit 0",
            )
        if one.kind == "efa" and not card.efa_with_ena:
            raise AwsError("UnsupportedOperation", f"EFA interfaces are not supported on {kind.name}")
    per_card = Counter(one.card for one in efa)
    for card, count in per_card.items():
        if count > 1:
            raise AwsError(
                "AttachmentLimitExceeded",
                f"EFA interface count {count} exceeds the limit for {kind.name} on Network Card {card} "
                f"limit 1",
            )
    if len(efa) > kind.efa:
        raise AwsError(
            "AttachmentLimitExceeded", f"EFA interface count {len(efa)} exceeds the limit for {kind.name}"
        )
