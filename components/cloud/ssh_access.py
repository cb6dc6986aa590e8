"""Who comes in to nodes over SSH on any cloud: from which networks, and through a cloud's own tunnel. Pure.

A way through a tunnel is recorded in the fleet's state and used by whoever has that, so it holds no secret.
What a key of `orch.yml` has to do with it is given to the command in its environment, under names of ours:
somebody without that `orch.yml` is told so, and does not come in by another account.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Mapping, Sequence

from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding

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
