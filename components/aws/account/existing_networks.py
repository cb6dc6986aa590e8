"""Given pieces of a network by their id or `Name`, looked up in one region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orch.components.aws.account.client_errors import pages, told

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
    """What became of the pieces that were looked for: `missing`, `several` and `outside` as in `AwsFacts`."""

    ec2: Any
    missing: list[str] = field(default_factory=list[str])
    several: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    outside: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, kind: Kind, wanted: Sequence[str], vpc: str | None = None) -> list[Row]:
        """The row of each that is there and the only one of its name: within `vpc`, where that is known."""
        found: list[Row] = []
        call, key, prefix, identity, by_id = _CALLS[kind]
        for each in wanted:
            filters = [{"Name": by_id if each.startswith(prefix) else "tag:Name", "Values": [each]}]
            if vpc is not None and not each.startswith(prefix):
                filters.append({"Name": "vpc-id", "Values": [vpc]})
            with told(f"look for {each}"):
                rows = list(pages(self.ec2, call, key, Filters=filters))
            if not rows:
                self.missing.append(each)
            elif len(rows) > 1:
                self.several[each] = tuple(sorted(str(row[identity]) for row in rows))
            else:
                found.append(rows[0])
        return found

    def subnets(self, wanted: Sequence[str], vpc: str | None) -> list[Row]:
        """The same of subnets; those of another VPC than `vpc`, or than the first's, are noted."""
        found = self.of("subnet", wanted, vpc)
        home = vpc or (str(found[0]["VpcId"]) if found else None)
        self.outside |= {str(row["SubnetId"]): str(row["VpcId"]) for row in found if row["VpcId"] != home}
        return [row for row in found if row["VpcId"] == home]
