"""Slow nodes and slow links are found among any number of nodes, by simulated bandwidths."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from orch.runner.verify.job import bisection
from orch.runner.verify.job.bisection import Fault, Matching, Pair, Verdict

FULL = 400.0


class Network:
    """Nodes whose pairs reach as much as the weaker of both ends and the link between them allow."""

    def __init__(
        self,
        nodes: int,
        slow_nodes: dict[int, float] | None = None,
        slow_links: dict[Pair, float] | None = None,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.nodes = nodes
        self._slow_nodes = slow_nodes or {}
        self._slow_links = slow_links or {}
        self._noise = noise
        self._chance = random.Random(seed)
        self.measured_matchings: list[Matching] = []

    def measure(self, matchings: tuple[Matching, ...]) -> dict[Pair, float]:
        found: dict[Pair, float] = {}
        for matching in matchings:
            ends = [node for pair in matching for node in pair]
            assert len(ends) == len(set(ends)), "a node is measured with two others at a time"
            self.measured_matchings.append(matching)
            for pair in matching:
                parts = (*(self._slow_nodes.get(node, 1.0) for node in pair), self._slow_links.get(pair, 1.0))
                found[pair] = FULL * min(parts) * self._chance.uniform(1 - self._noise, 1)
        return found

    def verdict(self) -> tuple[Verdict, int]:
        """What the bisection comes to, and in how many rounds."""
        taken = 0
        measured: dict[Pair, float] = {}
        for matchings in bisection.rounds(self.nodes):
            measured |= self.measure(matchings)
            taken += 1
        found = bisection.suspects(measured)
        matchings = bisection.confirmation(measured, found)
        again = self.measure(matchings)
        return bisection.verdict(measured, again), taken + bool(matchings)


def named(faults: tuple[Fault, ...]) -> list[int | Pair]:
    return [fault.node if fault.other is None else (fault.node, fault.other) for fault in faults]


@pytest.mark.parametrize("nodes", range(2, 65))
def test_each_pair_is_measured_once_in_as_many_rounds_as_the_numbers_have_bits(nodes: int) -> None:
    rounds = bisection.rounds(nodes)
    assert len(rounds) == math.ceil(math.log2(nodes))
    pairs = [pair for matchings in rounds for matching in matchings for pair in matching]
    assert sorted(pairs) == list(itertools.combinations(range(nodes), 2))
    for matching in (each for matchings in rounds for each in matchings):
        ends = [node for pair in matching for node in pair]
        assert len(ends) == len(set(ends))


def test_one_node_alone_has_no_pairs_and_no_faults() -> None:
    assert bisection.rounds(1) == ()
    assert bisection.verdict({}, {}) == Verdict(0.0, ())


@pytest.mark.parametrize("nodes", range(2, 65))
def test_a_good_fleet_has_no_faults(nodes: int) -> None:
    found, rounds = Network(nodes, noise=0.15, seed=nodes).verdict()
    assert (found.faults, rounds) == ((), math.ceil(math.log2(nodes)))
    assert 0.85 * FULL <= found.reference <= FULL


@pytest.mark.parametrize("nodes", range(3, 65))
def test_one_slow_node_is_named_and_its_links_are_not(nodes: int) -> None:
    for node in {0, nodes // 2, nodes - 1}:
        found, rounds = Network(nodes, {node: 0.5}, noise=0.15, seed=nodes).verdict()
        assert named(found.faults) == [node]
        assert found.faults[0].certain
        assert found.faults[0].bandwidth <= 0.5 * FULL
        assert rounds <= math.ceil(math.log2(nodes)) + 1


@pytest.mark.parametrize("nodes", range(3, 65))
def test_one_slow_link_is_named_and_its_ends_are_not(nodes: int) -> None:
    for link in {(0, 1), (0, nodes - 1), (nodes // 2 - 1, nodes - 1)}:
        found, rounds = Network(nodes, slow_links={link: 0.3}, noise=0.15, seed=nodes).verdict()
        assert named(found.faults) == [link]
        assert found.faults[0].certain
        assert rounds <= math.ceil(math.log2(nodes)) + 1


def test_a_slow_pair_and_a_slow_node_of_eight_are_found_in_four_rounds() -> None:
    for node in range(8):
        for link in itertools.combinations([each for each in range(8) if each != node], 2):
            network = Network(8, {node: 0.4}, {link: 0.2}, noise=0.2, seed=node)
            found, rounds = network.verdict()
            assert (named(found.faults), rounds) == ([node, link], 4)


@pytest.mark.parametrize("nodes", range(9, 65))
def test_several_faults_at_once_are_told_apart(nodes: int) -> None:
    chance = random.Random(nodes)
    numbers = chance.sample(range(nodes), 8)
    slow_nodes = {numbers[0]: 0.5, numbers[1]: 0.1}
    slow_links: dict[Pair, float] = {
        (min(pair), max(pair)): 0.4 for pair in (numbers[2:4], numbers[4:6], numbers[6:8])
    }
    found, _ = Network(nodes, slow_nodes, slow_links, noise=0.15, seed=nodes).verdict()
    assert named(found.faults) == [*sorted(slow_nodes), *sorted(slow_links)]


def test_two_of_four_that_are_slow_are_found_and_more_than_half_cannot_be() -> None:
    assert named(Network(4, {0: 0.5, 3: 0.5}).verdict()[0].faults) == [0, 3]
    assert Network(4, {0: 0.5, 2: 0.5, 3: 0.5}).verdict()[0].faults == ()


def test_of_two_nodes_nothing_can_be_compared() -> None:
    found, rounds = Network(2, slow_links={(0, 1): 0.01}).verdict()
    assert (found.faults, rounds) == ((), 1)
    assert found.reference == pytest.approx(4.0)


def test_a_node_with_some_slow_links_is_not_a_slow_node() -> None:
    links = {(2, 5): 0.3, (2, 6): 0.3}
    found, _ = Network(8, slow_links=links).verdict()
    assert named(found.faults) == [(2, 5), (2, 6)]


def test_what_is_quick_again_when_it_is_measured_twice_is_told_as_recovered() -> None:
    good = dict.fromkeys(itertools.combinations(range(8), 2), FULL)
    measured = {**good, (1, 4): 10.0}
    found = bisection.suspects(measured)
    assert (found.nodes, found.links) == ((), ((1, 4),))
    (first, *more) = bisection.confirmation(measured, found)
    assert (1, 4) in first
    assert more, "its ends are measured with others too"
    assert bisection.verdict(measured, good) == Verdict(FULL, (), ((1, 4),))
    # A node whose every pair was slow for a while.
    measured = {pair: 10.0 if 3 in pair else FULL for pair in good}
    found = bisection.suspects(measured)
    assert (found.nodes, found.links) == ((3,), ())
    assert bisection.verdict(measured, good).faults == ()


def test_an_end_that_is_slow_with_a_good_partner_too_is_the_fault_and_not_the_link() -> None:
    measured = dict.fromkeys(itertools.combinations(range(8), 2), FULL) | {(1, 4): 10.0}
    found = bisection.suspects(measured)
    pairs = [pair for matching in bisection.confirmation(measured, found) for pair in matching]
    again = {pair: 12.0 if 4 in pair else FULL for pair in pairs}
    faults = bisection.verdict(measured, again).faults
    assert [(fault.node, fault.other) for fault in faults] == [(4, None)]


def test_what_was_not_measured_again_is_told_as_uncertain() -> None:
    measured = {pair: 10.0 if 3 in pair else FULL for pair in itertools.combinations(range(8), 2)}
    (fault,) = bisection.verdict(measured, {}).faults
    assert (fault.node, fault.other, fault.certain) == (3, None, False)
