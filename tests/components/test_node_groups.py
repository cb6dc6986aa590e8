"""Node groups without a cloud: which nodes are where, and what is recorded of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orch.catalog.load import catalog
from orch.components.cloud.candidates import CloudCandidate
from orch.components.cloud.node_groups import (
    MOST,
    NodeGroup,
    free_number,
    keep_and_missing,
    leaving_aside,
    may_spread,
    moved_on,
    node_groups,
    prior_of_group,
    spreads,
    with_missing,
    with_unfinished,
)
from orch.components.request import PriorState
from orch.spec.models import Fleet

L4 = catalog().types["aws", "g6.xlarge"]
A, B = (CloudCandidate(L4, "us-east-1", zone, spot=False, price=1.0) for zone in ("use1-az1", "use1-az2"))


def fleet(nodes: int, **more: Any) -> Fleet:
    return Fleet.model_validate({"type": "fleet", "name": "pool", "nodes": nodes, **more})


def pins(indices: str, *others: dict[str, str], **more: str) -> dict[str, str]:
    first = {"zone": "use1-az1", "instance_type": "g6.xlarge", "spot": "false", "scope": "abcdef"}
    groups = {"groups": json.dumps(others)} if others else {}
    return {**first, "image": "ami-1", "layout": "one", "indices": indices, **groups, **more}


def other(number: int, indices: str, zone: str = "use1-az2", **more: str) -> dict[str, str]:
    own = {"zone": zone, "instance_type": "g6.xlarge", "spot": "false", "layout": "two"}
    return {"number": str(number), "indices": indices, **own, **more}


def test_the_first_group_has_the_nodes_that_no_other_has() -> None:
    groups = node_groups(PriorState(pins("0-5", other(1, "2,4"), other(3, "5"))))
    assert [(each.number, each.indices) for each in groups] == [(0, (0, 1, 3)), (1, (2, 4)), (3, (5,))]
    assert [each.number for each in node_groups(PriorState())] == [0]


def test_nodes_stay_in_their_group_the_last_go_and_those_that_are_missing_are_told() -> None:
    prior = PriorState(pins("0-5", other(1, "2,4"), other(3, "5")))
    groups, missing = keep_and_missing(fleet(5), prior)
    assert [(each.number, each.indices) for each in groups] == [(0, (0, 1, 3)), (1, (2, 4))]
    assert missing == ()
    groups, missing = keep_and_missing(fleet(8), prior)
    assert [each.number for each in groups] == [0, 1, 3]
    assert missing == (6, 7)
    # A node that a former `up` could not keep leaves a gap, which is filled first.
    _, missing = keep_and_missing(fleet(4), PriorState(pins("0,2-3")))
    assert missing == (1,)


def test_what_was_decided_for_a_group_is_its_own_and_what_all_share() -> None:
    prior = PriorState(pins("0-3", other(1, "2-3", image="ami-2")))
    first, second = node_groups(prior)
    assert prior_of_group(first, prior).pins == pins("0-1")
    found = prior_of_group(second, prior).pins
    assert (found["zone"], found["image"], found["layout"]) == ("use1-az2", "ami-2", "two")
    assert (found["scope"], found["indices"]) == ("abcdef", "2-3")
    # Of a new group nothing of its own is decided.
    fresh = prior_of_group(NodeGroup(2, {}, (4, 5)), prior).pins
    assert fresh["indices"] == ""
    assert not {"zone", "instance_type", "spot", "layout"} & set(fresh)


def test_missing_nodes_join_the_group_that_is_there_or_make_one_more() -> None:
    places = [(NodeGroup(0, {}, (0, 1)), A)]
    ((_, group),) = [(0, each) for each, _ in with_missing(places, [2], replace(A, additional=True))]
    assert group.indices == (0, 1, 2)
    first, second = with_missing(places, [3, 2], replace(B, additional=True))
    assert first == places[0]
    assert (second[0].number, second[0].indices, second[1].zone) == (1, (2, 3), "use1-az2")
    spot = replace(B, spot=True, additional=True)
    assert [each.number for each, _ in with_missing([first, second], [4], spot)] == [0, 1, 2]


def test_a_number_is_given_again_once_its_group_is_gone() -> None:
    groups = [NodeGroup(number, {}, ()) for number in (0, 1, 3)]
    assert free_number(groups) == 2
    assert free_number([NodeGroup(number, {}, ()) for number in range(MOST)]) is None


def test_nodes_of_an_up_that_was_cut_short_go_where_it_was_about_to_have_them() -> None:
    prior = PriorState(pins("0-1"))
    begun = pins("0-3", other(1, "2-3"))
    groups, missing = keep_and_missing(fleet(5), prior)
    assert missing == (2, 3, 4)
    groups, missing = with_unfinished(groups, missing, begun)
    assert [(each.number, each.indices) for each in groups] == [(0, (0, 1)), (1, (2, 3))]
    assert missing == (4,)
    # A group of that number that has come to lie elsewhere since is another one.
    groups, missing = keep_and_missing(fleet(4), PriorState(pins("0-2", other(1, "2", zone="use1-az3"))))
    assert with_unfinished(groups, missing, begun) == (groups, (3,))


@pytest.mark.parametrize(
    ("more", "can"), [({}, True), ({"placement": "cluster"}, False), ({"reservation": "cr-1"}, False)]
)
def test_nodes_of_a_cluster_or_a_reservation_are_in_one_place(more: dict[str, str], can: bool) -> None:
    assert may_spread(fleet(2, **more)) is can


def test_a_fleet_whose_bastion_leads_to_one_network_alone_stays_in_it() -> None:
    assert spreads(fleet(2), PriorState())
    assert not spreads(fleet(2), PriorState(pins("0-1")))
    assert spreads(fleet(2), PriorState(pins("0-1", spreads="true")))


def test_nodes_that_leave_their_place_are_missing_and_the_others_stay() -> None:
    prior = PriorState(pins("0-3", other(1, "2-3")), existing_nodes=frozenset(f"pool-{i}" for i in range(4)))
    assert leaving_aside(prior, ()) is prior
    groups, missing = keep_and_missing(fleet(4), leaving_aside(prior, {0, 3}))
    assert [(each.number, each.indices) for each in groups] == [(0, (1,)), (1, (2,))]
    assert missing == (0, 3)
    # Where the fleet began stays, though no node is there any more: its network is.
    groups, missing = keep_and_missing(fleet(4), leaving_aside(prior, {0, 1}))
    assert [(each.number, each.indices) for each in groups] == [(0, ()), (1, (2, 3))]
    assert missing == (0, 1)


def test_a_node_that_a_call_which_was_killed_has_moved_never_goes_back() -> None:
    before, begun = pins("0-1"), pins("0-1", other(1, "0"))
    left, pool = {"use1-az1"}, fleet(2)
    names = frozenset({"pool-0", "pool-1"})
    made = PriorState(before, existing_nodes=names, layouts={"pool-0": "two", "pool-1": "one"})
    assert moved_on(pool, made, begun, left) == {0}
    assert moved_on(pool, made, begun, ()) == frozenset()
    assert moved_on(pool, made, {}, left) == frozenset()
    # Its machine was not made yet: it is where it was.
    assert moved_on(pool, replace(made, layouts={"pool-0": "one"}), begun, left) == frozenset()
    groups, missing = keep_and_missing(pool, leaving_aside(made, {0}))
    groups, missing = with_unfinished(groups, missing, begun, left)
    assert [(each.number, each.indices) for each in groups] == [(0, (1,)), (1, (0,))]
    assert missing == ()
    # A group of the zone that is left takes none.
    assert with_unfinished(groups, (7,), pins("0-7", other(2, "7", zone="use1-az1")), left) == (groups, (7,))
