"""What the account has already: given pieces of a network by id or `Name`, instances, and what counts against
quotas.

Of what counts, the fleet that is planned is left out, whether its nodes and reservation are recorded or were
begun by a call that was killed: a plan asks for all of its nodes. Source: EC2 user guide, "On-Demand Instance
quotas".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orch.catalog.aws.machines import Market, QuotaRow, vcpu_quota
from orch.components.aws.account.client_errors import pages, translate_errors
from orch.components.cloud_errors import CloudRefused

Kind = Literal["vpc", "subnet", "security-group"]
Row = Mapping[str, Any]

# How each kind is listed, the key of its answer, how its ids begin and are called, and their filter.
_CALLS: Mapping[Kind, tuple[str, str, str, str, str]] = {
    "vpc": ("describe_vpcs", "Vpcs", "vpc-", "VpcId", "vpc-id"),
    "subnet": ("describe_subnets", "Subnets", "subnet-", "SubnetId", "subnet-id"),
    "security-group": ("describe_security_groups", "SecurityGroups", "sg-", "GroupId", "group-id"),
}


@dataclass
class Lookup:
    """A lookup of given pieces of a network; those not found are in the fields, as in `AwsFacts`."""

    ec2: Any
    missing: list[str] = field(default_factory=list[str])
    ambiguous: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    in_other_vpc: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, kind: Kind, names: Sequence[str], vpc: str | None = None) -> list[Row]:
        """The row of each that is there and the only one of its name: within `vpc`, where that is known."""
        rows_found: list[Row] = []
        call, key, prefix, identity, by_id = _CALLS[kind]
        for each in names:
            filters = [{"Name": by_id if each.startswith(prefix) else "tag:Name", "Values": [each]}]
            if vpc is not None and not each.startswith(prefix):
                filters.append({"Name": "vpc-id", "Values": [vpc]})
            with translate_errors(f"look for {each}"):
                rows = list(pages(self.ec2, call, key, Filters=filters))
            if not rows:
                self.missing.append(each)
            elif len(rows) > 1:
                self.ambiguous[each] = tuple(sorted(str(row[identity]) for row in rows))
            else:
                rows_found.append(rows[0])
        return rows_found

    def subnets(self, names: Sequence[str], vpc: str | None) -> list[Row]:
        """The same of subnets; those of another VPC than `vpc`, or than the first's, are noted."""
        rows = self.of("subnet", names, vpc)
        vpc_id = vpc or (str(rows[0]["VpcId"]) if rows else None)
        self.in_other_vpc |= {
            str(row["SubnetId"]): str(row["VpcId"]) for row in rows if row["VpcId"] != vpc_id
        }
        return [row for row in rows if row["VpcId"] == vpc_id]


RUNS = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]


@dataclass(frozen=True)
class QuotaUsage:
    """vCPUs of one quota, and network interfaces; None where these credentials may not look."""

    vcpus: int | None = None
    interfaces: int | None = None


def quota_usage(ec2: Any, account: str, quota: QuotaRow | None, market: Market, own: str) -> QuotaUsage:
    """`own`: how the tag `orch:stack` of the fleet's own resources ends. Raises CloudRefused."""
    try:
        with translate_errors("count what runs"):
            instances = list(instances_of(ec2, RUNS))
            reservations = list(_reservations(ec2, account, own)) if quota is not None else []
            own_ids = {str(each["InstanceId"]) for each in instances if _is_own(each, own)}
            others = [each for each in instances if each["InstanceId"] not in own_ids]
            vcpus = None if quota is None else _vcpus(ec2, _types(others, reservations, quota, market))
            return QuotaUsage(vcpus, _interfaces(ec2, own_ids))
    except CloudRefused as refused:
        if refused.error is None or refused.error.kind != "permission":
            raise
        return QuotaUsage()


def instances_of(ec2: Any, filters: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """The instances of the account that pass these filters. Raises what boto3 raises."""
    for page in pages(ec2, "describe_instances", "Reservations", Filters=filters):
        yield from page["Instances"]


def _reservations(ec2: Any, account: str, own: str) -> Iterator[Row]:
    """Those that count: of this account, besides Capacity Blocks, which have quotas of their own."""
    state = [{"Name": "state", "Values": ["active"]}]
    for each in pages(ec2, "describe_capacity_reservations", "CapacityReservations", Filters=state):
        block = each.get("ReservationType") == "capacity-block"
        if not block and each.get("OwnerId", account) == account and not _is_own(each, own):
            yield each


def _types(
    instances: Sequence[Row], reservations: Sequence[Row], quota: QuotaRow, market: Market
) -> Counter[str]:
    """How many of each type count against a quota. What runs in a reservation does not count again."""
    counts = Counter[str]()
    for each in instances:
        instance_market = {None: "on-demand", "spot": "spot"}.get(each.get("InstanceLifecycle"))
        if instance_market == market and each.get("CapacityReservationId") is None:
            counts[str(each["InstanceType"])] += 1
    if market == "on-demand":
        for each in reservations:
            counts[str(each["InstanceType"])] += int(each["TotalInstanceCount"])
    return Counter({name: count for name, count in counts.items() if vcpu_quota(name, market) == quota})


def _vcpus(ec2: Any, counts: Counter[str]) -> int:
    if not counts:
        return 0
    rows = list(pages(ec2, "describe_instance_types", "InstanceTypes", InstanceTypes=sorted(counts)))
    return sum(int(row["VCpuInfo"]["DefaultVCpus"]) * counts[str(row["InstanceType"])] for row in rows)


def _interfaces(ec2: Any, own_ids: set[str]) -> int:
    rows = pages(ec2, "describe_network_interfaces", "NetworkInterfaces")
    return sum((each.get("Attachment") or {}).get("InstanceId") not in own_ids for each in rows)


def _is_own(each: Row, own: str) -> bool:
    tags = {str(tag["Key"]): str(tag["Value"]) for tag in each.get("Tags", ())}
    return tags.get("orch:stack", "").endswith(own)
