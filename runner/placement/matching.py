"""Which node goes to which group of ranks, where groups fit different nodes: a bipartite matching. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Kind = frozenset[int]


@dataclass(frozen=True)
class Matching:
    """The nodes of each group, by their position in the sequence that was matched.

    `short`: groups that together fit fewer nodes than they need; empty when each group has its nodes.
    `usable`: how many nodes fit any of the groups in `short`.
    """

    groups: tuple[tuple[int, ...], ...]
    short: tuple[int, ...] = ()
    usable: int = 0


def match(fits: Sequence[Kind], sizes: Sequence[int]) -> Matching:
    """Give each group as many nodes as `sizes` says, each node to one group.

    `fits`: for each node, the best first, the groups that it fits. A node that was taken stays taken, and
    moves to another group where that makes room for one more: so a matching is found whenever there is one,
    and no later node takes the place of an earlier one that would do (the independent sets of nodes are a
    transversal matroid, for which the greedy choice is the best). Nodes that fit the same groups are
    interchangeable, so the search walks over groups and kinds of nodes, not over nodes.
    """
    # Group -> kind of node -> its nodes there.
    held: list[dict[Kind, list[int]]] = [{} for _ in sizes]
    filled = [0] * len(sizes)
    for node, kind in enumerate(fits):
        if sum(filled) == sum(sizes):
            break
        path = _path_to_room(kind, held, [filled[group] < size for group, size in enumerate(sizes)])
        if not path:
            continue
        # From the group with room back to the node's first one, each gives a node of a kind to the next.
        for (giver, _), (taker, moved) in reversed(list(pairwise(path))):
            held[taker].setdefault(moved, []).append(held[giver][moved].pop())
        held[path[0][0]].setdefault(kind, []).append(node)
        filled[path[-1][0]] += 1
    short = _shortage(fits, sizes, held, filled)
    usable = sum(1 for kind in fits if kind & set(short))
    return Matching(_in_order(held), short, usable)


def _path_to_room(
    kind: Kind, held: Sequence[dict[Kind, list[int]]], room: Sequence[bool]
) -> list[tuple[int, Kind]]:
    """Groups from one that a node of `kind` fits to one with room, each with the kind that moves into it.

    The shortest such way; empty when there is none.
    """
    came: dict[int, tuple[int | None, Kind]] = dict.fromkeys(sorted(kind), (None, kind))
    queue = deque(came)
    while queue:
        group = queue.popleft()
        if room[group]:
            path: list[tuple[int, Kind]] = []
            step: int | None = group
            while step is not None:
                before, moved = came[step]
                path.append((step, moved))
                step = before
            return path[::-1]
        for there, nodes in held[group].items():
            for other in sorted(there) if nodes else ():
                if other not in came:
                    came[other] = (group, there)
                    queue.append(other)
    return []


def _shortage(
    fits: Sequence[Kind], sizes: Sequence[int], held: Sequence[dict[Kind, list[int]]], filled: Sequence[int]
) -> tuple[int, ...]:
    """Groups that need more nodes than fit any of them (Hall's condition): from the first group that is not
    full, with all groups that hold a node which fits one of these."""
    first = next((group for group, size in enumerate(sizes) if filled[group] < size), None)
    if first is None:
        return ()
    short = {first}
    while True:
        more = {
            group
            for group, kinds in enumerate(held)
            if group not in short and any(nodes and kind & short for kind, nodes in kinds.items())
        }
        if not more:
            return tuple(sorted(short))
        short |= more


def _in_order(held: Sequence[dict[Kind, list[int]]]) -> tuple[tuple[int, ...], ...]:
    """The nodes of each group: of nodes of one kind, earlier groups have the earlier ones."""
    kinds: dict[Kind, list[int]] = {}
    for each in held:
        for kind, nodes in each.items():
            kinds.setdefault(kind, []).extend(nodes)
    rest = {kind: iter(sorted(nodes)) for kind, nodes in kinds.items()}
    return tuple(
        tuple(sorted(next(rest[kind]) for kind, nodes in each.items() for _ in nodes)) for each in held
    )
