"""Capacity: instances of a type in a zone, vCPUs of a quota, instances of a market.

Sources: rehearsal/README.md, "Capacity".
"""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.aws.data.tables import Type, regions, types, vcpu_quota
from orch.rehearsal.store import Doc

ON_DEMAND, SPOT = "on-demand", "spot"

BLOCK_GRACE_S = 30 * 60
"""Instances of a Capacity Block are terminated this long before its end."""


def live(request: Request, instance: str) -> Doc:
    """An instance of the request's region. Raises AwsError."""
    doc = request.store.get(instance, "instance")
    if doc is None or doc["_region"] != request.region:
        raise instance_missing(instance)
    return doc


def instance_missing(instance: str) -> AwsError:
    """What EC2 says of an instance that it does not know."""
    digits = instance[2:]
    if (
        not instance.startswith("i-")
        or len(digits) not in {8, 17}
        or any(c not in "0123456789abcdef" for c in digits)
    ):
        return AwsError("InvalidInstanceID.Malformed", f'Invalid id: "{instance}"')
    return missing("instance", instance)


def state_of(request: Request, instance: Doc) -> str:
    """The current state of an instance."""
    now = request.cloud.now()
    if "_terminated" in instance:
        return "terminated" if now >= instance["_terminated"] else "shutting-down"
    if "_ends" in instance and now >= instance["_ends"] - BLOCK_GRACE_S:
        return "terminated"
    if instance.get("_stopped"):
        return "stopped"
    return "running" if now >= instance["_ready"] else "pending"


def capacity_left(request: Request, kind: str, zone: str, market: str = ON_DEMAND) -> int | None:
    """The number of instances of a type that a zone can still start; None without a limit in the account."""
    knobs = request.cloud.knobs_now()
    table = knobs.spot_capacity if market == SPOT else knobs.capacity
    limit = next((table[key] for key in (f"{kind}@{zone}", f"*@{zone}", kind) if key in table), None)
    return None if limit is None else max(0, limit - request.store.weight(pool(kind, zone), market))


def pool(kind: str, zone: str) -> str:
    return f"pool {kind}@{zone}"


def occupy(request: Request, thing: str, kind: Type, zone: str, *, market: str, count: int = 1) -> None:
    """Take instances of a pool for `thing`, and count them against the vCPU quota."""
    request.store.refer(thing, pool(kind.name, zone), market, count)
    request.store.refer(thing, f"vcpus {request.region} {kind.group}", market, kind.vcpus * count)


def vacate(request: Request, thing: str, market: str) -> None:
    request.store.unrefer(thing, market)


def vcpus_left(request: Request, kind: Type, market: str) -> tuple[float, float]:
    """The vCPUs left in a quota, and the quota."""
    limit = request.cloud.quota(vcpu_quota(kind.group, market).code)
    return limit - request.store.weight(f"vcpus {request.region} {kind.group}", market), limit


def insufficient(request: Request, kind: str, zone: str) -> AwsError:
    others = ", ".join(z.name for z in regions()[request.region] if z.name != zone)
    return AwsError(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested "
        f"({zone}). Our "
        f"system will be working on provisioning additional capacity. You can currently get {kind} "
        f"capacity by not "
        f"specifying an Availability Zone in your request or choosing {others}.",
    )


def too_many_vcpus(limit: float, code: str = "VcpuLimitExceeded") -> AwsError:
    return AwsError(
        code,
        f"You have requested more vCPU capacity than your current vCPU limit of {limit:g} allows for the "
        f"instance "
        "bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request "
        "to request an adjustment to this limit.",
    )


def offered_in(request: Request, kind: str) -> list[str]:
    """The zones of the region that offer this type."""
    zones = request.cloud.knobs_now().offered.get(kind)
    return [z.name for z in regions()[request.region] if zones is None or z.name in zones]


def check_offered(request: Request, kind: str, zone: str) -> None:
    zones = offered_in(request, kind)
    if zone not in zones:
        elsewhere = f" or choosing {', '.join(zones)}" if zones else ""
        raise AwsError(
            "Unsupported",
            f"Your requested instance type ({kind}) is not supported in your requested Availability Zone "
            f"({zone}). "
            f"Please retry your request by not specifying an Availability Zone{elsewhere}.",
        )


def known_type(name: str) -> Type:
    kind = types().get(name)
    if kind is None:
        raise AwsError("InvalidParameterValue", f"Invalid value '{name}' for InstanceType.")
    return kind
