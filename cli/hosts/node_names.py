"""Nodes by the names that people type: gpu1, gpu[1-4,7]."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from orch.spec.errors import ExitCode, OrchError
from orch.spec.grammar.hosts import folded_size
from orch.spec.grammar.values import Problem, shown

if TYPE_CHECKING:
    from orch.spec.state import FleetState, NodeState


class UnknownNode(OrchError):
    """A node that no fleet here has, or that several have."""

    exit_code = ExitCode.USAGE


def chosen_nodes(given: Iterable[str], fleets: Mapping[str, FleetState]) -> tuple[NodeState, ...]:
    """The nodes that `given` names, each once. Raises UnknownNode."""
    known: dict[str, list[tuple[str, NodeState]]] = {}
    for fleet, state in fleets.items():
        for node in state.nodes:
            known.setdefault(node.name, []).append((fleet, node))
    names = dict.fromkeys(name for word in given for name in ([word] if word in known else _unfolded(word)))
    unknown = [name for name in names if name not in known]
    if unknown:
        from orch.runner.launch.environment import fold

        has = "; ".join(f"{fleet} has {fold([n.name for n in s.nodes])}" for fleet, s in fleets.items())
        where = next(iter(fleets)) if len(fleets) == 1 else "the fleets here"
        raise UnknownNode(
            f"no node named {fold(unknown)} in {where}",
            detail=has or "no fleet is up in this project",
            hint="`orch fleet` shows all nodes",
        )
    return tuple(_one(name, known[name]) for name in names)


def _one(name: str, found: Sequence[tuple[str, NodeState]]) -> NodeState:
    """The node of that name; one machine may be in several fleets, which the way to it shows."""
    if len({node.access.machine for _, node in found}) > 1:
        fleets = [fleet for fleet, _ in found]
        raise UnknownNode(
            f"{len(found)} fleets have a node named {name}: {', '.join(fleets)}",
            hint=f"say which with `--fleet {fleets[0]}`",
        )
    return found[0][1]


def _unfolded(word: str) -> list[str]:
    """The names that a word stands for, counted first: a thousand million would take all memory."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    reason: NodeSetException | Problem | None = None
    names: list[str] = []
    try:
        # What a comma, or another sign of this notation, parts outside of brackets is counted by itself.
        for part in re.split(r"[,!&^\s](?![^\[]*\])", word):
            folded_size(part)
        if not re.search(r"\[(?![0-9,/-]*\])", word):
            names = list(NodeSet(word, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, Problem) as error:
        reason = error
    if not names:
        raise UnknownNode(
            f"{shown(word)} is not the name of nodes",
            detail=str(reason) if reason else None,
            hint="such as gpu1 or gpu[1-4,7]",
        ) from reason
    return names
