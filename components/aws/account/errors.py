"""The cloud's error codes: which of them another zone may mend, and what to do about the others.

Source of the codes: EC2 API reference, "Error codes for the Amazon EC2 API"; IAM, SSM and Service Quotas API
references, "Common errors"; EFS and FSx API references, the errors of each action.
"""

from __future__ import annotations

import re

from orch.components.cloud_errors import CloudError, Kind

_QUOTA = "ask for more in the Service Quotas console of this region, or name another region"
_LOGIN = "log in again: `aws sso login` or `aws configure`, then `aws sts get-caller-identity`"
# Code -> kind, and what to do.
TABLE: dict[str, tuple[Kind, str | None]] = {
    "InsufficientInstanceCapacity": ("capacity", None),
    "InsufficientHostCapacity": ("capacity", None),
    "InsufficientCapacity": ("capacity", None),
    "InsufficientReservedInstanceCapacity": ("capacity", None),
    "UnfulfillableCapacity": ("capacity", None),
    "SpotMaxPriceTooLow": (
        "capacity",
        "raise `max_price`, or let on-demand instances in: `spot_policy: auto`",
    ),
    # The type is not sold in this zone: another one may have it.
    "Unsupported": ("capacity", None),
    "ReservationCapacityExceeded": (
        "quota",
        "the reservation has too few instances left: ask for fewer nodes, or a larger one",
    ),
    "VcpuLimitExceeded": ("quota", _QUOTA),
    "InstanceLimitExceeded": ("quota", _QUOTA),
    "MaxSpotInstanceCountExceeded": ("quota", _QUOTA),
    "AddressLimitExceeded": ("quota", "release unused Elastic IPs, or ask for more (quota L-0263D0A3)"),
    "NetworkInterfaceLimitExceeded": ("quota", _QUOTA),
    "VpcLimitExceeded": ("quota", "delete a VPC, ask for more, or give one: `network: {vpc: …}`"),
    "InternetGatewayLimitExceeded": ("quota", _QUOTA),
    "NatGatewayLimitExceeded": ("quota", _QUOTA),
    "SecurityGroupLimitExceeded": ("quota", _QUOTA),
    "PlacementGroupLimitExceeded": ("quota", "delete unused placement groups (500 per region)"),
    "InsufficientFreeAddressesInSubnet": ("quota", "give a larger subnet, or several"),
    "VolumeLimitExceeded": ("quota", _QUOTA),
    "MaxIOPSLimitExceeded": ("quota", _QUOTA),
    "UnauthorizedOperation": (
        "permission",
        "the message names the action: let the user or role do it, or ask who manages the account",
    ),
    "AccessDenied": ("permission", "let the user or role do what the message names"),
    "AccessDeniedException": ("permission", "let the user or role do what the message names"),
    "OptInRequired": ("permission", "enable the region or subscription in the account first"),
    "PendingVerification": ("permission", "AWS is still verifying the account for this region"),
    "AuthFailure": ("credentials", _LOGIN),
    "InvalidClientTokenId": ("credentials", _LOGIN),
    "UnrecognizedClientException": ("credentials", _LOGIN),
    "ExpiredToken": ("credentials", _LOGIN),
    "ExpiredTokenException": ("credentials", _LOGIN),
    "RequestExpired": ("credentials", "set this machine's clock, then log in again"),
    "SignatureDoesNotMatch": ("credentials", _LOGIN),
    "InvalidParameterValue": ("parameter", None),
    "InvalidParameterCombination": ("parameter", None),
    "InvalidParameter": ("parameter", None),
    "MissingParameter": ("parameter", None),
    "InvalidAMIID.NotFound": ("parameter", "name an image of this region in `os_image`, or remove it"),
    "InvalidAMIID.Unavailable": ("parameter", "name another image in `os_image`"),
    "InvalidSubnetID.NotFound": ("parameter", "the subnet is gone, or of another account: see `network`"),
    "InvalidSubnet.Conflict": ("parameter", "the subnet's addresses are in use in that VPC"),
    "InvalidVpcID.NotFound": ("parameter", "the VPC is gone, or of another account: see `network`"),
    "InvalidGroup.NotFound": ("parameter", "a security group is gone, or of another VPC: see `network`"),
    "InvalidCapacityReservationId.NotFound": ("parameter", "see `reservation`"),
    "InvalidCapacityReservationId.Malformed": ("parameter", "an id looks like cr-0123456789abcdef0"),
    "InvalidPlacementGroup.Unknown": ("parameter", None),
    "InvalidPlacementGroup.InUse": ("gone", None),
    "DependencyViolation": ("gone", None),
    "ResourceInUse": ("gone", None),
    "InvalidInstanceID.NotFound": ("gone", None),
    "RequestLimitExceeded": ("throttle", None),
    "Throttling": ("throttle", None),
    "ThrottlingException": ("throttle", None),
    "ResourceCountExceeded": ("quota", _QUOTA),
    "FileSystemLimitExceeded": ("quota", f"delete file systems that nobody uses; or {_QUOTA}"),
    "ServiceLimitExceeded": ("quota", f"the message names the limit of FSx: ask for less, or {_QUOTA}"),
    "ThroughputLimitExceeded": ("quota", f"ask for less throughput under `create`; or {_QUOTA}"),
    "BadRequest": ("parameter", None),
    "InternalServerError": ("throttle", None),
    "NoFreeAddressesInSubnet": ("quota", "give a larger subnet, or several"),
    "InsufficientThroughputCapacity": ("capacity", None),
    "UnsupportedAvailabilityZone": ("capacity", None),
    "InvalidNetworkSettings": ("parameter", "see `network`: the subnet or the security groups do not serve"),
    "MountTargetConflict": ("parameter", "the file system has a mount target in that zone already"),
    "FileSystemInUse": ("gone", None),
    "IncorrectFileSystemLifeCycleState": ("gone", None),
    "Client.InstanceInitiatedShutdown": ("unknown", None),
    "InternalError": ("throttle", None),
    "InternalFailure": ("throttle", None),
    "ServiceUnavailable": ("throttle", None),
    "Unavailable": ("throttle", None),
}

# What a region answers that the account has not enabled; a policy of the organization denies actions there.
_OF_REGION = ("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException")

_IN_TEXT = (
    re.compile(r"api error ([A-Za-z][A-Za-z0-9_.]+):"),
    # Errors that the model of a service names, as EFS's and FSx's, come without the words `api error`.
    re.compile(r"RequestID: [^,\s]*, ([A-Z][A-Za-z0-9]+):"),
    re.compile(r"An error occurred \(([A-Za-z][A-Za-z0-9_.]+)\) when calling"),
    re.compile(r"unexpected state '[a-z-]+'.*?(Server\.InsufficientInstanceCapacity)"),
)


def by_code(code: str, message: str = "") -> CloudError:
    """What a code means. One that is not known stops: trying elsewhere would repeat it."""
    kind, hint = TABLE.get(
        code.removeprefix("Server.").removeprefix("Client."), TABLE.get(code, ("unknown", None))
    )
    if code == "InvalidParameterValue" and "Availability Zone" in message and "not support" in message:
        kind, hint = "capacity", None
    return CloudError("AWS", "the account", code, kind, message, hint)


def is_of_region(error: CloudError) -> bool:
    """Whether another region may answer although this one refuses."""
    return error.kind == "permission" or error.code in _OF_REGION


def read(text: str) -> CloudError | None:
    """The cloud's error in what a provider or boto3 said; None when there is none in it."""
    for pattern in _IN_TEXT:
        if match := pattern.search(text):
            return by_code(match[1], text.strip())
    return None
