"""Who comes in to nodes over SSH on any cloud: from which networks, and through a cloud's own tunnel. Pure.

A way through a tunnel is recorded in the fleet's state and used by whoever has that, so it holds no secret.
What a key of `orch.yml` has to do with it is given to the command in its environment, under names of ours:
somebody without that `orch.yml` is told so, and does not come in by another account.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orch.components.cloud.plan import Bastion
from orch.offers.match import money
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.backends.base import CloudSettings
from orch.spec.models.blocks import Network as NetworkBlock

# As it stands between double quotes.
_MISSING = r"the credentials that \`creds\` in orch.yml names are not at hand here"


def command(words: Sequence[str]) -> str:
    """Words as a proxy command: each stays one word, and `%` is no mark of ssh's."""
    return shlex.join(words).replace("%", "%%")


def with_environment(words: Sequence[str], variables: Mapping[str, str], unset: Sequence[str]) -> str:
    """The same with variables set from others that the caller has: `variables` is name -> the caller's name.

    They are set by the shell itself: a word of a command is seen in the list of processes. `unset` are those
    that would overrule them.
    """
    sets = " ".join(f'{name}="${{{callers_name}:?{_MISSING}}}"' for name, callers_name in variables.items())
    script = f"export {sets}; unset {' '.join((*unset, *variables.values()))}; exec {shlex.join(words)}"
    return command(["sh", "-c", script])


def source_findings(cidrs: Sequence[str], *, written: bool, alone: str) -> Iterator[Finding]:
    """What is wrong with `ssh_cidrs`. `written`: they are the file's own, else the backend's; `alone`: what
    leads in without any.
    """
    for index, cidr in enumerate(cidrs):
        path = f"network.ssh_cidrs[{index}]" if written else "network"
        known = ipaddress.ip_network(cidr, strict=False)
        if known.version == 6:
            yield Finding(
                "ORCH226",
                path,
                f"nobody comes in from {cidr}: nodes and bastion have IPv4 addresses only",
                hint="name the IPv4 networks that you come from instead"
                if len(cidrs) == 1
                else "remove it: the IPv4 networks beside it are let in",
            )
        elif known.prefixlen == 0:
            yield Finding(
                "ORCH224",
                path,
                f"{cidr} lets the whole world knock at SSH",
                hint="name your own networks, or remove it: without any, "
                f"{alone} leads in and no port is open",
                severity=Severity.WARNING,
            )


# The way in to machines of a cloud that has no tunnel of its own

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


def subnets_in(block: NetworkBlock, region: str) -> tuple[str, ...]:
    """Return the subnets that a file gives in a region."""
    return block.subnets.get(region, ()) if isinstance(block.subnets, dict) else block.subnets


def way_in(block: NetworkBlock, settings: CloudSettings) -> AccessMethod:
    """Over given hops; straight, where networks are named that may come in, or security groups that decide
    it; else over a bastion: for clouds without a tunnel that asks who comes in, as SSM and IAP do."""
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


def private_by_settings(block: NetworkBlock | None, settings: CloudSettings, given: str) -> Iterator[Finding]:
    """Report settings that ask for private addresses of a cloud that has none, as `given` says."""
    if settings.public_ips is False and (block is None or block.public_ips == "auto"):
        yield Finding(
            "ORCH237",
            "backends",
            f"{given}; `public_ips: false` of `{settings.type}` in orch.yml asks for none",
            hint="remove it there, or write `network: {public_ips: true}` here",
        )


def access_findings(
    cloud: str, block: NetworkBlock, access: AccessMethod, *, all_public: bool = False
) -> Iterator[Finding]:
    """What is wrong with the way in. `all_public`: nodes have public addresses however one gets in."""
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
            detail=f"{cloud} has no tunnel that asks who comes in. The bastion takes the fleet's key alone "
            "and passes SSH on; "
            + ("nobody else may reach the nodes" if all_public else "nodes have no public addresses"),
            hint="write `ssh_cidrs`, here or at the backend in orch.yml: the networks that you come from",
            severity=Severity.WARNING,
        )
    yield from source_findings(access.cidrs, written=bool(block.ssh_cidrs), alone="a hop of `proxy_jump`")


def ssh_reasons(access: AccessMethod, bastion: Bastion | None, *, jumps: int) -> Iterator[str]:
    """How SSH gets in, for a plan."""
    if access.kind == "given":
        yield f"SSH: over {jumps} given hop{'s' * (jumps != 1)}"
    elif access.kind == "direct":
        yield f"SSH: straight, from {', '.join(access.sources) or 'where the groups say'}"
    elif bastion is not None:
        price = "" if bastion.price is None else f" at {money(bastion.price)} an hour"
        yield (
            f"SSH: over a bastion, {bastion.instance_type}{price} with a public address, which answers "
            f"{', '.join(bastion.cidrs)} and passes on to the nodes alone whoever has the fleet's key"
        )
