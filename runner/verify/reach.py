"""Whether the nodes of a fleet reach each other at all, before anything is measured between them.

A library of collectives that cannot connect to a peer waits for minutes and names an address: each node is
asked to connect to each other one, and what nobody reaches is named here.
"""

from __future__ import annotations

from collections.abc import Mapping

from orch.runner.hosts.checks.types import MeshView
from orch.runner.hosts.network import ClusterAddress, ClusterNetwork
from orch.runner.hosts.survey import try_mesh
from orch.runner.node.connector import Connector
from orch.runner.verify.judge import Shortfall
from orch.spec.state import FleetState
from orch.spec.suggest import counted

CODE = "ORCH447"
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

    A node is at fault that fails with most of its peers, and with more of them than those fail with; what
    is left are links.
    """
    failures: dict[frozenset[str], str] = {}
    peers: dict[str, set[str]] = {name: set() for name in views}
    for name, view in views.items():
        for peer, why in view.unreached:
            failures.setdefault(frozenset((name, peer)), _printable(why))
    for pair in failures:
        for name in pair:
            peers.setdefault(name, set()).update(pair - {name})
    found: list[Shortfall] = []
    others = sum(view.failure is None for view in views.values()) - 1
    while failures:
        counts = {name: sum(name in pair for pair in failures) for name in peers}
        worst = max(counts, key=lambda name: (counts[name], name))
        if others < 2 or counts[worst] < 2 or 2 * counts[worst] <= others:
            break
        why = next(why for pair, why in failures.items() if worst in pair)
        text = f"node {worst} and {counts[worst]} of {counted(others, 'other node')} do not connect: {why}"
        found.append(Shortfall(CODE, text, (worst,), "node"))
        failures = {pair: why for pair, why in failures.items() if worst not in pair}
    for pair, why in failures.items():
        one, other = sorted(pair)
        text = f"{one} and {other} do not connect over the fleet's network: {why}"
        found.append(Shortfall(CODE, text, (one, other), "link"))
    return tuple(found)


def _printable(text: str) -> str:
    """What a node says, on one line."""
    return " ".join("".join(each if each.isprintable() else " " for each in text[:400]).split())[:120]
