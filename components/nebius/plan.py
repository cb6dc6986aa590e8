"""What a planned Nebius fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orch.components.cloud.plan import NeocloudPlan

DISK_TYPE = "NETWORK_SSD"
NETWORKS_PER_RULE = 8
"""Source: nebius/api vpc/v1/security_rule.proto, source_cidrs."""


@dataclass(frozen=True)
class Network:
    """The network of a fleet. `subnet` and `network`: ids of given ones, None: made with the fleet.

    `groups`: ids of given security groups, None: one is made, which lets `ssh_from` reach SSH.
    """

    subnet: str | None
    network: str | None
    groups: tuple[str, ...] | None
    ssh_from: tuple[str, ...]

    @property
    def ssh_rules(self) -> tuple[tuple[str, ...], ...]:
        return rules_of(self.ssh_from)


def rules_of(cidrs: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The networks that each rule lets reach SSH: a rule takes few."""
    starts = range(0, len(cidrs), NETWORKS_PER_RULE)
    return tuple(cidrs[start : start + NETWORKS_PER_RULE] for start in starts)


@dataclass(frozen=True)
class Disk:
    """The root disk, which comes and goes with its machine."""

    size_gb: int
    type: str = DISK_TYPE


@dataclass(frozen=True, kw_only=True)
class NebiusPlan(NeocloudPlan):
    """A fleet on Nebius.

    `infiniband`: the fabric on which its GPU cluster is made, None for machines that join none; the field
    `zone` holds it too, else the region. `access`: how SSH gets in; `public`: whether nodes have public
    addresses; `jumps`: given hops. `reservation`: the capacity block group that they are made from.
    `confidential`: the user data may hold secrets of the file.
    """

    project: str
    infiniband: str | None
    network: Network
    public: bool
    disk: Disk
    reservation: str | None
    rank_by_topology: bool
    labels: Mapping[str, str]

    @property
    def ends_itself(self) -> bool:
        return self.idle is not None or self.lifetime is not None

    @property
    def base(self) -> str:
        """What names of cloud resources begin with."""
        return f"orch-{self.fleet}-{self.scope}"

    @property
    def platform(self) -> str:
        return self.instance_type.rpartition("_")[0]
