"""Findings of plans on several clouds: missing images and networks, and clusters without a fabric. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.blocks import Network as NetworkBlock


def written_image(fleet: Fleet, backend: str) -> str | None:
    """Return the machine image that a file chooses for a backend, None if it chooses none."""
    return fleet.os_image.get(backend) if isinstance(fleet.os_image, dict) else fleet.os_image


def missing_image(summary: str, hint: str, *, written: bool, pinned: str | None = None) -> Finding:
    """Return the finding that nodes have no machine image.

    `hint`: how to name one. `written`: the file names the missing one; `pinned`: its pin, None without.
    """
    return Finding(
        "ORCH213",
        "os_image" if written else "resources",
        summary,
        detail=f"{pinned} is pinned, and gone" if pinned else None,
        hint="`orch up --upgrade` takes the newest" if pinned and not written else hint,
    )


def missing_bastion(region: str, path: str, hint: str, *, part: str = "image") -> Finding:
    """Return the finding that a bastion cannot be created. `part`: what of it the region does not have."""
    return Finding("ORCH213", path, f"no machine {part} was found for a bastion in {region}", hint=hint)


def wants_fabric(fleet: Fleet) -> bool:
    """Return whether nodes are to be connected by a fast interconnect, if their type has one."""
    plain = fleet.network is not None and fleet.network.interconnect == "ethernet"
    return fleet.placement == "cluster" and not plain


def ethernet_only(fleet: Fleet, summary: str, hint: str, *, path: str | None = None) -> Iterator[Finding]:
    """Warn a cluster that its type has no fast interconnect. `hint`: how to get one."""
    if wants_fabric(fleet):
        yield Finding(
            "ORCH223",
            path or ("instance_types" if fleet.instance_types else "placement"),
            summary,
            hint=f"{hint}; or write `network: {{interconnect: ethernet}}`",
            severity=Severity.WARNING,
        )


def missing_pieces(
    block: NetworkBlock, missing: Collection[str], project: str, hint: str
) -> Iterator[Finding]:
    """Report the given pieces of a network that a project does not have. `missing`: their names."""
    for name in missing:
        path = "network"
        if not isinstance(block.subnets, dict) and name in block.subnets:
            path = f"network.subnets[{block.subnets.index(name)}]"
        elif name == block.vpc:
            path = "network.vpc"
        elif name in block.security_groups:
            path = f"network.security_groups[{block.security_groups.index(name)}]"
        yield Finding("ORCH226", path, f"the project {project} has no {name}", hint=hint)


def short_reservation(total: int, free: int, *, nodes: int, new: int) -> Iterator[Finding]:
    """Report a reservation that does not hold a fleet. `new`: how many of its nodes are to be created."""
    if total < nodes:
        yield Finding(
            "ORCH321",
            "reservation",
            f"the reservation holds {total} instances, the fleet has {nodes} nodes",
            hint=f"write `nodes: {total}`, or name a reservation of {nodes}",
        )
    elif free < new:
        yield Finding(
            "ORCH321",
            "reservation",
            f"{free} of the reservation's {total} instances are free, {new} more nodes are wanted",
            detail="others use the rest",
            hint="end what uses them, or name another reservation",
        )
