"""Whether the nodes of a fleet reach each other at all, before anything is measured between them.

A library of collectives that cannot connect to a peer waits for minutes and names an address: each node is
asked to connect to each other one, and what nobody reaches is named here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from orch.runner.hosts.checks.types import MeshView
from orch.runner.hosts.network import ClusterAddress, ClusterNetwork
from orch.runner.hosts.survey import try_mesh
from orch.runner.node.connector import Connector
from orch.runner.verify.judge import Shortfall
from orch.spec.state import FleetState
from orch.spec.suggest import counted

CODE = "ORCH447"
MOST = 0.75
MOST_LINKS = 16
"""So many links are told one by one."""
_MTU = 1500
"""Packets of this size pass all networks that jobs use; larger ones are `orch check`'s matter."""


def unreached(fleet: FleetState, connector: Connector) -> tuple[Shortfall, ...]:
    """The nodes and links of a fleet over which no connection comes about, nodes first.

    Only what certainly listens is tried: nodes without python3, perl, socat or nc say nothing of their links,
    nor do those without an internal address, and those that do not answer at all.
    """
    addresses = tuple(
        ClusterAddress(node.name, node.internal_ip, "", _MTU) for node in fleet.nodes if node.internal_ip
    )
    if len(addresses) < 2:
        return ()
    network = ClusterNetwork(None, addresses)
    return shortfalls(try_mesh(fleet.nodes, network, connector, listening_only=True))


def shortfalls(views: Mapping[str, MeshView]) -> tuple[Shortfall, ...]:
    """What connections that fail say of nodes and of links. Pure.

    A node is at fault that fails with MOST of the others, most of which fail with fewer than it does; what is
    left are links. Two halves of a fleet that do not reach each other are no fault of any node.
    """
    failures: dict[frozenset[str], str] = {}
    for name, view in views.items():
        for peer, why in view.unreached:
            failures.setdefault(frozenset((name, peer)), _printable(why))
    others = sum(view.failure is None for view in views.values()) - 1
    counts = Counter(name for pair in failures for name in pair)
    found: list[Shortfall] = []
    for name, many in sorted(counts.items()):
        peers = [counts[peer] for pair in failures if name in pair for peer in pair - {name}]
        if many < 2 or many < MOST * others or 2 * sum(each < many for each in peers) <= many:
            continue
        why = next(why for pair, why in failures.items() if name in pair)
        text = f"node {name} and {many} of {counted(others, 'other node')} do not connect: {why}"
        found.append(Shortfall(CODE, text, (name,), "node"))
    blamed = {name for each in found for name in each.nodes}
    links = {tuple(sorted(pair)): why for pair, why in failures.items() if not pair & blamed}
    if len(links) > MOST_LINKS:
        first, why = next(iter(links.items()))
        text = f"{len(links)} pairs of nodes do not connect, such as {' and '.join(first)}: {why}"
        found.append(Shortfall(CODE, text, tuple(sorted({name for pair in links for name in pair})), "link"))
    else:
        for pair, why in links.items():
            text = f"{' and '.join(pair)} do not connect over the fleet's network: {why}"
            found.append(Shortfall(CODE, text, pair, "link"))
    return tuple(found)


def _printable(text: str) -> str:
    """What a node says, on one line."""
    return " ".join("".join(each if each.isprintable() else " " for each in text[:400]).split())[:120]
