"""The network of a fleet and how SSH gets to its nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orch.catalog.records import Catalog
from orch.components.cloud.plan import Bastion
from orch.components.cloud.ssh_access import source_findings
from orch.components.nebius.account.facts import NebiusFacts
from orch.components.nebius.plan import Network
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.models.blocks import Network as NetworkBlock

WORLD = "0.0.0.0/0"
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
"""Where nodes have their addresses, and a given hop comes from, whose own address is not known."""


@dataclass(frozen=True)
class AccessMethod:
    """The way in: straight to public addresses, over given hops, or over a bastion.

    `public`: whether nodes have public addresses; `cidrs`: the networks that the file or orch.yml names.
    """

    kind: Literal["direct", "given", "bastion"]
    public: bool
    cidrs: tuple[str, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The networks that may reach the SSH of nodes; where a bastion leads in it alone may."""
        if self.kind == "bastion":
            return ()
        return self.cidrs if self.cidrs or self.kind == "direct" else PRIVATE


def network_of(fleet: Fleet) -> NetworkBlock:
    return fleet.network or NetworkBlock()


def way_in(block: NetworkBlock, settings: NebiusSettings) -> AccessMethod:
    """Over given hops; straight, where networks are named that may come in, or security groups that decide
    it; else over a bastion: Nebius has no tunnel that asks who comes in, as SSM and IAP do."""
    cidrs = settings.ssh_cidrs if block.ssh_cidrs is None else block.ssh_cidrs
    wanted = settings.public_ips if block.public_ips == "auto" else block.public_ips
    named = bool(cidrs or block.security_groups)
    straight = block.bastion is False or (named and block.bastion == "auto")
    public = straight and not block.proxy_jump if wanted == "auto" else wanted
    if block.proxy_jump and not (public and named):
        return AccessMethod("given", public, cidrs)
    return AccessMethod(
        "direct" if block.bastion is False or (public and straight) else "bastion", public, cidrs
    )


def access_findings(block: NetworkBlock, access: AccessMethod) -> Iterator[Finding]:
    if access.kind == "direct" and not access.public:
        yield Finding(
            "ORCH235",
            "network.bastion",
            "nobody could log in to the nodes: they have no public addresses, and no hop leads to them",
            hint="remove `bastion: false`, or write `proxy_jump`, with `subnets` that the hop is in",
        )
    elif access.kind == "direct" and not access.cidrs and not block.security_groups:
        yield Finding(
            "ORCH235",
            "network.bastion",
            "nobody could log in to the nodes: no network may reach their SSH",
            hint="write `ssh_cidrs`, the networks that you come from; or remove `bastion: false`",
        )
    if access.kind == "given" and not (block.vpc or block.subnets):
        yield Finding(
            "ORCH226",
            "network.proxy_jump",
            "the jump host lies outside the network that is made for the fleet",
            hint="give the jump host's subnet with `subnets`, or remove `proxy_jump`",
            severity=Severity.WARNING,
        )
    if access.kind == "bastion" and not access.cidrs:
        yield Finding(
            "ORCH224",
            "network",
            f"{WORLD} lets the whole world knock at SSH",
            detail="Nebius has no tunnel that asks who comes in. The bastion takes the fleet's key alone and "
            "passes SSH on; nodes have no public addresses",
            hint="write `ssh_cidrs`, here or at the backend in orch.yml: the networks that you come from",
            severity=Severity.WARNING,
        )
    yield from source_findings(access.cidrs, written=bool(block.ssh_cidrs), alone="a hop of `proxy_jump`")


def given_findings(block: NetworkBlock, facts: NebiusFacts) -> Iterator[Finding]:
    """Given pieces that are not there."""
    for name in facts.missing:
        path = "network"
        if name == block.vpc:
            path = "network.vpc"
        elif not isinstance(block.subnets, dict) and name in block.subnets:
            path = f"network.subnets[{block.subnets.index(name)}]"
        elif name in block.security_groups:
            path = f"network.security_groups[{block.security_groups.index(name)}]"
        yield Finding(
            "ORCH226",
            path,
            f"the project {facts.project} has no {name}",
            hint="name it by its id or its name, in the project of the fleet's region",
        )
    if (block.vpc or block.subnets) and not facts.missing and not facts.subnets:
        yield Finding(
            "ORCH226",
            "network.vpc" if block.vpc else "network.subnets",
            "the given network has no subnet in this region",
            hint="make one, or name another network",
        )


def network(block: NetworkBlock, facts: NebiusFacts, access: AccessMethod) -> Network:
    given = facts.subnets[0] if facts.subnets else None
    return Network(
        subnet=given.id if given else None,
        network=given.network if given else None,
        groups=facts.groups if block.security_groups else None,
        ssh_from=access.sources,
    )


# The bastion


def bastion(access: AccessMethod, facts: NebiusFacts, region: str, catalog: Catalog) -> Bastion | None:
    """The smallest machine without GPUs that the region has, with a public address."""
    if access.kind != "bastion" or facts.bastion_type is None or facts.bastion_image is None:
        return None
    prices = [
        offer.price
        for offer in catalog.lists["nebius"].offers
        if (offer.type.name, offer.region) == (facts.bastion_type, region) and offer.price is not None
    ]
    cidrs = access.cidrs or (WORLD,)
    return Bastion(facts.bastion_type, facts.bastion_image.id, True, cidrs, min(prices, default=None))


def bastion_findings(access: AccessMethod, facts: NebiusFacts, region: str) -> Iterator[Finding]:
    if access.kind == "bastion" and (facts.bastion_type is None or facts.bastion_image is None):
        what = "type" if facts.bastion_type is None else "image"
        yield Finding(
            "ORCH213",
            "network",
            f"no machine {what} was found for a bastion in {region}",
            hint="write `ssh_cidrs`, the networks that you come from, or give `proxy_jump`",
        )
