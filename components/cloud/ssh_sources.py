"""Networks that may reach SSH (`ssh_cidrs`), on any cloud. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding


def source_findings(cidrs: Sequence[str], *, written: bool, alone: str) -> Iterator[Finding]:
    """What is wrong with them. `written`: they are the file's own, else the backend's; `alone`: what leads in
    without any.
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
