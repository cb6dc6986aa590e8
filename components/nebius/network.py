"""The network of a fleet: what is given, what is made, and its bastion. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.catalog.records import Catalog
from orch.components.cloud.plan import Bastion
from orch.components.cloud.ssh_access import WORLD, AccessMethod
from orch.components.nebius.account.facts import NebiusFacts
from orch.components.nebius.plan import Network
from orch.spec.findings import Finding
from orch.spec.models.blocks import Network as NetworkBlock


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
