"""How SSH gets to the nodes. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orch.components.cloud.machines.ssh_access import source_findings
from orch.components.gcp.account.facts import GcpFacts
from orch.components.gcp.account.lookups import NetworkLookup
from orch.components.gcp.plan import Vpc
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models.backends.credentials import GcpServiceAccountCreds
from orch.spec.models.backends.gcp import GcpSettings

SSH = 22
# Where Identity-Aware Proxy comes from. Source: Google Cloud "Using IAP for TCP forwarding".
IAP = "35.235.240.0/20"


@dataclass(frozen=True)
class AccessMethod:
    """The way in.

    `bastion`: how it is reached itself where there is one; `sources`: where given hops come from.
    """

    kind: Literal["bastion", "given", "iap", "direct"]
    bastion: Literal["public", "iap"] | None = None
    sources: tuple[str, ...] = ()

    def reasons(self, lookup: NetworkLookup) -> Iterator[str]:
        closed = "; no port is open to the world"
        if self.kind == "bastion":
            where = "reached through IAP" + closed
            if self.bastion == "public":
                where = f"which answers {', '.join(lookup.ssh_cidrs)}"
            yield f"SSH: over a small bastion {where}"
        elif self.kind == "given":
            yield "SSH: over the given jump host" + (
                f", from {', '.join(self.sources)}" if self.sources else ""
            )
        elif self.kind == "iap":
            yield "SSH: through IAP" + closed
        else:
            yield f"SSH: straight, from {', '.join(lookup.ssh_cidrs)}"


def way_in(lookup: NetworkLookup, *, public: bool) -> AccessMethod:
    """Over given hops, else a bastion for private nodes, else straight or through IAP."""
    if lookup.block.proxy_jump:
        return AccessMethod("given")
    if lookup.block.bastion is False or (public and lookup.block.bastion == "auto"):
        return AccessMethod("direct" if public and lookup.ssh_cidrs else "iap")
    return AccessMethod("bastion", "public" if lookup.ssh_cidrs else "iap")


def jump_sources(lookup: NetworkLookup, first: Vpc, facts: GcpFacts) -> tuple[str, ...]:
    """Where a given jump host comes from: the written networks, else all subnets of the given VPC.

    In a network that is made or shared, all within reach each other already.
    """
    if lookup.ssh_cidrs or first.origin != "given":
        return lookup.ssh_cidrs
    network = facts.network(first.name)
    ranges = [each.cidr for each in network.subnets if each.cidr] if network else []
    return tuple(each for each in ranges if ipaddress.ip_network(each).version == 4)


def jump_findings(way: AccessMethod, first: Vpc) -> Iterator[Finding]:
    """Whether a given jump host reaches the nodes."""
    if way.kind != "given":
        return
    if first.origin == "made":
        yield Finding(
            "ORCH226",
            "network.proxy_jump",
            "the jump host lies outside the network that is made for the fleet",
            hint="give the jump host's network with `vpc`, or remove `proxy_jump`",
            severity=Severity.WARNING,
        )
    elif first.origin == "given" and not way.sources:
        yield Finding(
            "ORCH226",
            "network.proxy_jump",
            f"where the jump host comes from is not known: the VPC {first.name} has no IPv4 range here",
            hint="name its address: `ssh_cidrs: [192.0.2.7/32]`",
            severity=Severity.WARNING,
        )


def cidr_findings(lookup: NetworkLookup) -> Iterator[Finding]:
    yield from source_findings(lookup.ssh_cidrs, written=bool(lookup.block.ssh_cidrs), alone="IAP")


def iap_key_findings(settings: GcpSettings) -> Iterator[Finding]:
    """Whether gcloud, which opens the tunnels of IAP, can use the credentials of `orch.yml`."""
    creds = settings.creds
    if isinstance(creds, GcpServiceAccountCreds) and creds.filename is None:
        yield Finding(
            "ORCH303",
            "network",
            "gcloud leads to the nodes through IAP, and takes the key of a service account from a file only",
            detail="`creds` of gcp in orch.yml gives it as `data`",
            hint="write `filename` there, or `network: {ssh_cidrs: …}` or `{proxy_jump: …}` in the fleet",
        )
