"""Which node or link is at fault where connections fail."""

from __future__ import annotations

from itertools import permutations

import pytest

from orch.runner.hosts.checks.types import MeshView
from orch.runner.verify.verification import shortfalls

Failures = dict[tuple[str, str], str]


def views(names: str, failures: Failures) -> dict[str, MeshView]:
    """What each node tells: `failures` are connections (from, to) with the reason."""
    return {
        name: MeshView(
            peers=len(names) - 1,
            unreached=tuple((to, why) for (by, to), why in failures.items() if by == name),
            unreached_by=tuple((by, why) for (by, to), why in failures.items() if to == name),
        )
        for name in names
    }


def closed(names: str, *nodes: str) -> Failures:
    """Nodes that nobody reaches and that reach nobody."""
    return {pair: "no answer in 5 s" for pair in permutations(names, 2) if {*pair} & {*nodes}}


@pytest.mark.parametrize(
    ("names", "failures", "found"),
    [
        ("abcd", {}, []),
        ("abcd", {("a", "c"): "refused"}, [("link", ("a", "c"))]),
        ("abcd", {("a", "c"): "refused", ("c", "a"): "refused"}, [("link", ("a", "c"))]),
        ("ab", closed("ab", "b"), [("link", ("a", "b"))]),
        ("abc", closed("abc", "b"), [("node", ("b",))]),
        ("abcdefgh", closed("abcdefgh", "c", "f"), [("node", ("c",)), ("node", ("f",))]),
        (
            "abcdefgh",
            {**closed("abcdefgh", "c"), ("a", "h"): "refused"},
            [("node", ("c",)), ("link", ("a", "h"))],
        ),
        # One direction is enough: a node that reaches nobody has a dead port.
        ("abcd", {("a", to): "no route" for to in "bcd"}, [("node", ("a",))]),
        # Two links of one node among many are two links.
        (
            "abcdefgh",
            {("a", "b"): "refused", ("a", "c"): "refused"},
            [("link", ("a", "b")), ("link", ("a", "c"))],
        ),
    ],
)
def test_the_node_or_the_link_is_named(
    names: str, failures: Failures, found: list[tuple[str, tuple[str, ...]]]
) -> None:
    told = shortfalls(views(names, failures))
    assert sorted((each.kind, each.nodes) for each in told) == sorted(found)
    assert {each.code for each in told} <= {"ORCH447"}


def test_two_halves_that_do_not_reach_each_other_are_told_whoever_is_at_fault() -> None:
    failures = {(one, other): "no answer" for one in "abcd" for other in "efgh"}
    told = shortfalls(views("abcdefgh", failures))
    assert {each.kind for each in told} == {"link"}
    assert {name for each in told for name in each.nodes} == {*"abcdefgh"}
    failures |= {("x", other): "no answer" for other in "efgh"}
    (all_of_them,) = shortfalls(views("abcdxefgh", failures))
    assert all_of_them.text == "20 pairs of nodes do not connect, such as a and e: no answer"
    assert all_of_them.nodes == tuple("abcdefghx")


def test_a_node_that_could_not_take_part_is_no_fault_of_the_network_and_words_of_nodes_are_one_line() -> None:
    known = views("abc", {("a", "b"): f"\x1b[31m{'x' * 5000}\nerror: forged"})
    known["c"] = MeshView(peers=0, failure="no route to host")
    (told,) = shortfalls(known)
    assert told.nodes == ("a", "b")
    assert told.text.isprintable()
    assert len(told.text) < 250
