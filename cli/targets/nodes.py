"""Nodes by the names that people type: gpu1, gpu[1-4,7]."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from orch.spec.errors import ExitCode, OrchError
from orch.spec.grammar.hosts import folded_size
from orch.spec.grammar.values import Problem, shown

if TYPE_CHECKING:
    from orch.spec.state import FleetState, NodeState


class UnknownNode(OrchError):
    """A node that no fleet here has, or that several have."""

    exit_code = ExitCode.USAGE


def nodes_named(words: Iterable[str], fleets: Mapping[str, FleetState]) -> tuple[NodeState, ...]:
    """The nodes that `words` name, plain or folded, each once. Raises UnknownNode."""
    nodes: dict[str, list[tuple[str, NodeState]]] = {}
    for fleet, state in fleets.items():
        for node in state.nodes:
            nodes.setdefault(node.name, []).append((fleet, node))
    names = names_in(words, nodes)
    unknown = [name for name in names if name not in nodes]
    if unknown:
        from orch.spec.grammar.hosts import fold

        has = "; ".join(
            f"{fleet} has {fold([n.name for n in s.nodes]) or 'none'}" for fleet, s in fleets.items()
        )
        scope = next(iter(fleets)) if len(fleets) == 1 else "the fleets here"
        raise UnknownNode(
            f"no node named {fold(unknown)} in {scope}",
            detail=has or "no fleet is up in this project",
            hint="`orch fleet` shows all nodes",
        )
    return tuple(_single(name, nodes[name]) for name in names)


def names_in(words: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """The names that words stand for, plain or folded, each once; a word that is `known` is a name. Raises
    UnknownNode."""
    return tuple(
        dict.fromkeys(name for word in words for name in ([word] if word in known else _unfolded(word)))
    )


def _single(name: str, candidates: Sequence[tuple[str, NodeState]]) -> NodeState:
    """The node of that name. One machine may be in several fleets; its access record says that it is one.

    Raises UnknownNode when the name means different machines."""
    if len({node.access.machine for _, node in candidates}) > 1:
        fleets = [fleet for fleet, _ in candidates]
        raise UnknownNode(
            f"{len(candidates)} fleets have a node named {name}: {', '.join(fleets)}",
            hint=f"say which with `--fleet {fleets[0]}`",
        )
    return candidates[0][1]


def _unfolded(word: str) -> list[str]:
    """The names that a folded word stands for, counted before they are unfolded to bound the memory."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    reason: NodeSetException | Problem | None = None
    names: list[str] = []
    try:
        # Parts outside brackets, separated by an operator of the notation, are counted one by one.
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


def selected(state: FleetState, words: Sequence[str]) -> tuple[NodeState, ...]:
    """The nodes of a fleet that `words` name, by name, folded names or index; all when there are none."""
    if not words:
        return state.nodes
    by_index = {str(node.index): node.name for node in state.nodes}
    node_names = {node.name for node in state.nodes}
    names = [word if word in node_names else by_index.get(word, word) for word in words]
    return nodes_named(names, {state.name: state})
