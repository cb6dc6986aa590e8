"""How SSH gets to the nodes. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orch.components.findings import Finding
from orch.components.gcp.wanted import WantedNetwork
from orch.spec.diagnostics import Severity

SSH = 22
# Where Identity-Aware Proxy comes from. Source: Google Cloud "Using IAP for TCP forwarding".
IAP = "35.235.240.0/20"


@dataclass(frozen=True)
class Way:
    """The way in; `bastion`: how it is reached itself where there is one."""

    kind: Literal["bastion", "given", "iap", "direct"]
    bastion: Literal["public", "iap"] | None = None

    def reasons(self, wanted: WantedNetwork) -> Iterator[str]:
        closed = "; no port is open to the world"
        if self.kind == "bastion":
            where = "reached through IAP" + closed
            if self.bastion == "public":
                where = f"which answers {', '.join(wanted.ssh_cidrs)}"
            yield f"SSH: over a small bastion {where}"
        elif self.kind == "given":
            yield "SSH: over the given jump host"
        elif self.kind == "iap":
            yield "SSH: through IAP" + closed
        else:
            yield f"SSH: straight, from {', '.join(wanted.ssh_cidrs)}"


def way_in(wanted: WantedNetwork, *, public: bool) -> Way:
    """Over given hops, else a bastion for private nodes, else straight or through IAP."""
    if wanted.block.proxy_jump:
        return Way("given")
    if wanted.block.bastion is False or (public and wanted.block.bastion == "auto"):
        return Way("direct" if public and wanted.ssh_cidrs else "iap")
    return Way("bastion", "public" if wanted.ssh_cidrs else "iap")


def cidr_findings(wanted: WantedNetwork) -> Iterator[Finding]:
    for index, cidr in enumerate(wanted.ssh_cidrs):
        if ipaddress.ip_network(cidr, strict=False).prefixlen == 0:
            yield Finding(
                "ORCH224",
                f"network.ssh_cidrs[{index}]" if wanted.block.ssh_cidrs else "network",
                f"{cidr} lets the whole world knock at SSH",
                hint="name your own networks, or remove it: without any, IAP leads in and no port is open",
                severity=Severity.WARNING,
            )
