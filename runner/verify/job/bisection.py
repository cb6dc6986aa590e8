"""Finds the slow nodes and the slow links among nodes: which pairs are measured when, and what that tells.

Nodes have numbers from 0. The rounds go through the bits of these numbers: round b measures each pair whose
numbers differ in bit b and in none above it, so that ceil(log2(n)) rounds measure each pair once. The pairs
of a matching share no node and are measured at the same time: pair (i, i XOR m) in matching m. One round more
measures the suspects again, each also with another partner: a slow node is slow with any, the ends of a slow
link are not.

Pure, and of the standard library of Python 3.9: it goes to the nodes with the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Pair = tuple[int, int]
Matching = tuple[Pair, ...]
Matchings = tuple[Matching, ...]
Bandwidths = Mapping[Pair, float]

SLOW = 0.7
"""A pair is slow below this part of what pairs of this fleet reach. Healthy pairs of a fabric differ by some
percent, a port with half of its lanes or one of two rails halves what they reach."""


@dataclass(frozen=True)
class Suspects:
    """What is slow after the rounds. `reference`: what a pair of good nodes reaches; 0 where nothing was
    measured. `links`: slow pairs of nodes that are not suspects themselves."""

    reference: float
    nodes: tuple[int, ...]
    links: tuple[Pair, ...]


@dataclass(frozen=True)
class Fault:
    """A node or a link (then `other` is its second end) that is slow. `bandwidth`: the best that it reached.
    `certain`: False for a link whose ends had no other partner to be measured with."""

    node: int
    other: int | None
    bandwidth: float
    certain: bool = True


@dataclass(frozen=True)
class Verdict:
    """What all rounds came to. `recovered`: pairs that were slow once and not the second time."""

    reference: float
    faults: tuple[Fault, ...]
    recovered: tuple[Pair, ...] = ()


def rounds(nodes: int) -> tuple[tuple[Matching, ...], ...]:
    """The matchings of each round among so many nodes; none for one node."""
    found: list[tuple[Matching, ...]] = []
    for bit in range(max(0, nodes - 1).bit_length()):
        matchings = (_matching(mask, nodes) for mask in range(1 << bit, 2 << bit))
        found.append(tuple(each for each in matchings if each))
    return tuple(found)


def _matching(mask: int, nodes: int) -> Matching:
    return tuple((node, node ^ mask) for node in range(nodes) if node < node ^ mask < nodes)


def suspects(measured: Bandwidths, slow: float = SLOW) -> Suspects:
    """Whom the pairs that were measured (GB/s by pair) point to.

    What a node can do is the upper quartile of its pairs, the reference is the median of that over all nodes.
    It holds while fewer than half of the nodes are slow. A node that stays below it with nearly all partners
    is a suspect; a pair of others that does is a suspect link.
    """
    ability = {node: _upper_quartile(values) for node, values in _by_node(measured).items()}
    if not ability:
        return Suspects(0.0, (), ())
    reference = sorted(ability.values())[len(ability) // 2]
    limit = slow * reference
    nodes = tuple(sorted(node for node, best in ability.items() if best < limit))
    links = (pair for pair, value in measured.items() if value < limit and not {*pair} & {*nodes})
    return Suspects(reference, nodes, tuple(sorted(links)))


def confirmation(measured: Bandwidths, found: Suspects, slow: float = SLOW) -> tuple[Matching, ...]:
    """The matchings of the last round: suspect links again, and each suspect node and each end of a suspect
    link with a good partner, where there is one."""
    partners = _partners(measured, found, slow)
    wanted: dict[Pair, None] = dict.fromkeys(found.links)
    wanted.update(dict.fromkeys(_pair(node, partner) for node, partner in partners.items()))
    matchings: list[list[Pair]] = []
    for pair in wanted:
        free = (each for each in matchings if not any({*pair} & {*other} for other in each))
        at = next(free, None)
        if at is None:
            matchings.append([pair])
        else:
            at.append(pair)
    return tuple(tuple(each) for each in matchings)


def verdict(measured: Bandwidths, again: Bandwidths, slow: float = SLOW) -> Verdict:
    """What is slow, by the rounds and by what the last one measured again.

    A suspect that reached the limit when it was measured again is told as recovered: a fault stays."""
    found = suspects(measured, slow)
    limit = slow * found.reference
    partners = _partners(measured, found, slow)
    by_node = _by_node(measured)
    faults: dict[tuple[int, int | None], Fault] = {}
    recovered: list[Pair] = []
    for node in found.nodes:
        pair = _pair(node, partners[node]) if node in partners else None
        second = again.get(pair) if pair is not None else None
        if pair is not None and second is not None and second >= limit:
            recovered.append(pair)
            continue
        best = max(_upper_quartile(by_node[node]), second or 0.0)
        faults[node, None] = Fault(node, None, best, certain=second is not None)
    for pair in found.links:
        second = again.get(pair)
        if second is not None and second >= limit:
            recovered.append(pair)
            continue
        with_others = {
            end: again[_pair(end, partners[end])]
            for end in pair
            if end in partners and _pair(end, partners[end]) in again
        }
        slow_ends = [end for end, value in with_others.items() if value < limit]
        if slow_ends:
            for end in slow_ends:
                faults[end, None] = Fault(end, None, with_others[end])
        else:
            best = max(measured[pair], second or 0.0)
            faults[pair] = Fault(*pair, best, certain=second is not None and len(with_others) == 2)
    blamed = {node for node, other in faults if other is None}
    kept = (
        fault for fault in faults.values() if fault.other is None or not {fault.node, fault.other} & blamed
    )
    return Verdict(
        found.reference,
        tuple(sorted(kept, key=lambda each: (each.other is not None, each.node, each.other or 0))),
        tuple(sorted(recovered)),
    )


def _partners(measured: Bandwidths, found: Suspects, slow: float) -> dict[int, int]:
    """A good partner of each node that is measured again, each another one while there are enough.

    A partner of the end of a link is one with which it was quick before."""
    limit = slow * found.reference
    ends = dict.fromkeys(end for link in found.links for end in link)
    everyone = sorted({node for pair in measured for node in pair})
    unsuspected = [node for node in everyone if node not in ends and node not in found.nodes]
    others = [node for node in everyone if node in ends]
    taken: set[int] = set()
    chosen: dict[int, int] = {}
    for node in (*found.nodes, *ends):
        quick = [
            each
            for each in (*unsuspected, *others)
            if each != node and (node in found.nodes or measured.get(_pair(node, each), 0.0) >= limit)
        ]
        if quick:
            chosen[node] = next((each for each in quick if each not in taken), quick[0])
            taken.add(chosen[node])
    return chosen


def _by_node(measured: Bandwidths) -> dict[int, list[float]]:
    values: dict[int, list[float]] = {}
    for pair, value in measured.items():
        for node in pair:
            values.setdefault(node, []).append(value)
    return values


def _upper_quartile(values: Sequence[float]) -> float:
    return sorted(values, reverse=True)[(len(values) - 1) // 4]


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)
