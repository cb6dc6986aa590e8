"""AWS's error responses: a code and a message.

Codes: EC2 API reference, "Error codes for the Amazon EC2 API". Server errors have status 5xx.
"""

from __future__ import annotations

from orch.rehearsal.calls import Refusal

SERVER_ERRORS = frozenset(
    {
        "InsufficientAddressCapacity",
        "InsufficientCapacity",
        "InsufficientInstanceCapacity",
        "InternalError",
        "InternalFailure",
        "RequestLimitExceeded",
        "ServerInternal",
        "ServiceUnavailable",
        "Unavailable",
    }
)

# Sources: EFS API reference, errors of each action.
CONFLICTS = frozenset(
    {
        "FileSystemAlreadyExists",
        "FileSystemInUse",
        "IncorrectFileSystemLifeCycleState",
        "MountTargetConflict",
        "NoFreeAddressesInSubnet",
    }
)

THROTTLED = "RequestLimitExceeded"


class AwsError(Refusal):
    """One error response. `code` is AWS's own."""

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        if self.code in {THROTTLED, "ServiceUnavailable", "Unavailable"}:
            return 503
        if self.code in SERVER_ERRORS:
            return 500
        if self.code in CONFLICTS:
            return 409
        return 403 if self.code in {"UnauthorizedOperation", "AccessDenied", "AuthFailure"} else 400


def missing(kind: str, resource_id: str) -> AwsError:
    """The error for an unknown id; each kind of resource has its own code."""
    code, text = NOT_FOUND[kind]
    return AwsError(code, text.format(resource_id))


NOT_FOUND = {
    "vpc": ("InvalidVpcID.NotFound", "The vpc ID '{}' does not exist"),
    "subnet": ("InvalidSubnetID.NotFound", "The subnet ID '{}' does not exist"),
    "internet-gateway": (
        "InvalidInternetGatewayID.NotFound",
        "The internetGateway ID '{}' does not exist",
    ),
    "natgateway": ("NatGatewayNotFound", "NAT gateway {} was not found"),
    "elastic-ip": ("InvalidAllocationID.NotFound", "The allocation ID '{}' does not exist"),
    "route-table": ("InvalidRouteTableID.NotFound", "The routeTable ID '{}' does not exist"),
    "security-group": ("InvalidGroup.NotFound", "The security group '{}' does not exist"),
    "security-group-rule": (
        "InvalidSecurityGroupRuleId.NotFound",
        "The security group rule ID '{}' does not exist",
    ),
    "placement-group": ("InvalidPlacementGroup.Unknown", "The Placement Group '{}' is unknown."),
    "capacity-reservation": (
        "InvalidCapacityReservationId.NotFound",
        "The capacity reservation ID '{}' does not exist",
    ),
    "launch-template": (
        "InvalidLaunchTemplateId.NotFound",
        "The specified launch template, with template ID {}, does not exist.",
    ),
    "instance": ("InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    "network-interface": (
        "InvalidNetworkInterfaceID.NotFound",
        "The networkInterface ID '{}' does not exist",
    ),
    "key-pair": ("InvalidKeyPair.NotFound", "The key pair '{}' does not exist"),
    "vpc-endpoint": ("InvalidVpcEndpointId.NotFound", "The Vpc Endpoint Id '{}' does not exist"),
    "volume": ("InvalidVolume.NotFound", "The volume '{}' does not exist."),
    "image": ("InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
}
