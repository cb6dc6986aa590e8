"""What a planned Crusoe fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

from dataclasses import dataclass

from orch.components.cloud.plan import NeocloudPlan

CIDR = "10.0.0.0/16"
"""Of a network that is made with a fleet, which no other one reaches, and of its one subnet."""

OS_DISK_GIB = 128
"""What a VM's own disk has, which no create changes. Source: docs.crusoecloud.com storage/disks/overview."""

BASTION_TYPE = "c1a.2x"
BASTION_IMAGE = "ubuntu22.04:latest"


@dataclass(frozen=True)
class Network:
    """The network of a fleet. `subnet` and `network`: ids of given ones, None: made with the fleet, with
    rules that let `ssh_from` reach SSH; the rules of a given one stay as they are."""

    subnet: str | None
    network: str | None
    ssh_from: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CrusoePlan(NeocloudPlan):
    """A fleet on Crusoe.

    `ib_network`: the id of the InfiniBand network in which its partition is made, None without one; the field
    `zone` holds the network's name too, else the location. `public`: whether nodes have public addresses.
    `disk_gib`: the size of a node's data disk, None where it has
    disks of its own. `reservation`: the one that nodes are made from, None: any that Crusoe chooses, or none.
    """

    project: str
    ib_network: str | None
    network: Network
    public: bool
    bastion_image: str | None
    disk_gib: int | None
    reservation: str | None
    rank_by_topology: bool
