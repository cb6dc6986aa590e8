"""How many nodes a fleet has, and which, where its file leaves the number open."""

from __future__ import annotations

from typing import Any

import pytest
from kit.clouds.planning import request_of

from orch.components.node_count import count_words, is_template, node_indices, own_pins, with_node_count
from orch.components.registry.planning import spares_of, spares_words
from orch.components.request import PlanRequest, PriorState
from orch.spec.models import Fleet
from orch.spec.state import FleetSpares

SHRUNK = {"min": 1, "target": 4, "max": 8}


def fleet(nodes: object) -> Fleet:
    return Fleet.model_validate({"type": "fleet", "name": "pool", "nodes": nodes})


def request(nodes: object, previous: PriorState, **more: Any) -> PlanRequest:
    return with_node_count(request_of(fleet(nodes), previous=previous, **more))


def indices(nodes: object, previous: PriorState, **more: Any) -> tuple[int, ...]:
    planned = request(nodes, previous, **more)
    return node_indices(planned.fleet, planned.previous)


def up(
    recorded: str | None, pinned: str, *existing: int, read: bool = True, ended: tuple[int, ...] = ()
) -> PriorState:
    """A fleet that was brought up for `recorded`; its state has the `existing` nodes, some of them ended."""
    pins = {"scope": "abc123", "indices": pinned} | ({} if recorded is None else {"nodes": recorded})
    names = frozenset(f"pool-{index}" for index in existing)
    gone = frozenset(f"pool-{index}" for index in ended)
    return PriorState(pins, existing_nodes=names if read else None, backend="aws", ended=gone)


@pytest.mark.parametrize(
    ("nodes", "previous", "expected"),
    [
        # A new fleet has its target; what a killed `up` made of it is part of that.
        (SHRUNK, PriorState(existing_nodes=frozenset()), (0, 1, 2, 3)),
        (SHRUNK, PriorState(existing_nodes=frozenset({"pool-5"})), (0, 1, 2, 5)),
        ("0..8", PriorState(existing_nodes=frozenset()), ()),
        # Later ones keep what is there, under the names that it has.
        (SHRUNK, up("1/4/8", "0-3", 0, 1, 2, 3), (0, 1, 2, 3)),
        (SHRUNK, up("1/4/8", "0-3", 0, 3), (0, 3)),
        ("0..8", up("0/0/8", "2,5", 2, 5), (2, 5)),
        ("0..8", up("0/0/8", "0-1"), ()),
        # Nodes that a killed call made and nobody recorded stay, under their names.
        ("0..8", up("0/0/8", "0-1", 0, 1, 2), (0, 1, 2)),
        ("0..8", up("0/0/8", "0-1", 0, 6), (0, 6)),
        # Those that ended themselves stay away. The state has them still: what is new has other names.
        ("0..8", up("0/0/8", "0-3", 0, 1, 2, 3, ended=(1, 3)), (0, 2)),
        ("0..8", up("0/0/8", "0-1", 0, 1, ended=(0, 1)), ()),
        (SHRUNK, up("1/4/8", "0-1", read=False, ended=(0, 1)), (2,)),
        (4, up("0/4/4", "0-3", 0, 1, 2, 3, ended=(1, 3)), (0, 2, 4, 5)),
        # Never below the minimum, nor above the maximum.
        (SHRUNK, up("1/4/8", "0-3"), (0,)),
        ({"min": 2, "target": 4, "max": 8}, up("2/4/8", "0-3", 3), (0, 3)),
        ("0..2", up("0/0/8", "0-3", 0, 1, 2, 3), (0, 1)),
        # An edit makes the target act again; a range names no number to have now.
        ({"min": 1, "target": 3, "max": 8}, up("1/4/8", "0-3", 0), (0, 1, 2)),
        ({"min": 1, "target": 2, "max": 8}, up("1/4/8", "0-3", 0, 1, 2, 3), (0, 1)),
        ({"min": 1, "target": 4, "max": 9}, up("1/4/8", "0-3", 0), (0, 1, 2, 3)),
        ("0..16", up("0/0/8", "0-3", 0, 1, 2, 3), (0, 1, 2, 3)),
        ("2..16", up("0/0/8", "0", 0), (0, 1)),
        # So it does where too few were to be had.
        (SHRUNK, up("", "0-1", 0, 1), (0, 1, 2, 3)),
        # A former version recorded nothing to compare with: as many as are there.
        (SHRUNK, up(None, "0-3", 0, 1, 2, 3), (0, 1, 2, 3)),
        (SHRUNK, up(None, "0-1", 0, 1), (0, 1)),
        ("0..8", up(None, "0-5", 0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)),
        # Where the state was not read, what is recorded counts: no node goes for that.
        ("0..8", up("0/0/8", "0-3", read=False), (0, 1, 2, 3)),
        # Spares are nodes more, those of a range too; an edit of their number is one of all.
        ({"min": 4, "max": 4, "spare": 1}, PriorState(existing_nodes=frozenset()), (0, 1, 2, 3, 4)),
        ({"min": 2, "max": 8, "spare": 1}, PriorState(existing_nodes=frozenset()), (0, 1, 2)),
        ({"min": 2, "max": 8, "spare": 1}, up("3/3/9", "0-4", 0, 1, 2, 3, 4), (0, 1, 2, 3, 4)),
        ({"min": 2, "max": 2, "spare": 2}, up("3/3/3", "0-2", 0, 1, 2), (0, 1, 2, 3)),
        ({"min": 2, "max": 2}, up("3/3/3", "0-2", 0, 1, 2), (0, 1)),
        # A number is a number.
        ("3", up("3/3/3", "0-2", 0, 2), (0, 1, 2)),
        ("3", up("0/0/8", "0-4", 0, 1, 2, 3, 4), (0, 1, 2)),
    ],
)
def test_a_fleet_keeps_the_nodes_that_it_has_until_its_file_says_otherwise(
    nodes: object, previous: PriorState, expected: tuple[int, ...]
) -> None:
    assert indices(nodes, previous) == expected


def test_who_asks_for_a_number_gets_it_within_the_bounds_of_the_file() -> None:
    there = up("0/0/4", "0", 0)
    assert indices("0..4", there, count=3) == (0, 1, 2)
    assert indices("0..4", there, count=9) == (0, 1, 2, 3)
    assert indices("1..4", there, count=0) == (0,)
    assert len(indices("0..", there, count=900)) == 900
    # What a run needs takes no node away that others made meanwhile.
    more = up("0/0/4", "0-2", 0, 1, 2)
    assert indices("0..4", more, at_least=2) == (0, 1, 2)
    assert indices("0..4", more, at_least=9) == (0, 1, 2, 3)


def test_what_is_recorded_is_the_file_and_nothing_while_nodes_are_missing() -> None:
    planned = request(SHRUNK, PriorState())
    assert own_pins(planned, 4) == {"nodes": "1/4/8"}
    assert own_pins(planned, 3) == {"nodes": ""}
    assert own_pins(request("2..", PriorState()), 2) == {"nodes": "2/2/"}
    assert own_pins(request_of(Fleet.model_validate({"type": "fleet", "name": "pool"})), 2) == {}


def test_a_fleet_that_never_had_a_node_is_nowhere() -> None:
    recorded = PriorState({"nodes": "0/0/8", "template": "true"}, existing_nodes=frozenset())
    for previous in (PriorState(), recorded):
        planned = request("0..8", previous)
        assert is_template(planned)
        assert not planned.previous.pins
        assert planned.at is None
    assert not is_template(request("0..8", up("0/0/8", "")))
    assert not is_template(request("0..8", recorded, count=1))
    # One that a killed call began is where its first nodes are.
    begun = PriorState(recorded.pins, unfinished={"backend": "gcp"}, existing_nodes=frozenset({"pool-0"}))
    planned = request("0..8", begun)
    assert (node_indices(planned.fleet, planned.previous), planned.at) == ((0,), "gcp")
    outputs = {"pins": dict(recorded.pins), "fleet": {"backend": "aws", "nodes": []}}
    assert PriorState.of_outputs(outputs).backend is None
    created = {"type": "efs", "path": "/data", "create": True}
    data = Fleet.model_validate({"type": "fleet", "name": "pool", "nodes": "0..8", "mounts": [created]})
    assert not is_template(with_node_count(request_of(data)))


def test_a_plan_without_nodes_says_how_many_there_may_be() -> None:
    assert count_words(fleet("2..4"), 2, "g6.xlarge") == "2 x g6.xlarge"
    assert count_words(fleet("0..4"), 0, "g6.xlarge") == "no node now; runs make up to 4: g6.xlarge"
    assert (
        count_words(fleet("0.."), 0, "g6.xlarge") == "no node now; runs make as many as they need: g6.xlarge"
    )
    assert count_words(fleet("0"), 0, "g6.xlarge") == "no node now: g6.xlarge"


def test_the_reservation_of_a_run_is_the_fleets_as_long_as_it_has_nodes_and_its_file_names_none() -> None:
    def planned(nodes: object, previous: PriorState, **more: Any) -> tuple[str | None, str | None]:
        found = request(nodes, previous, **more)
        return found.fleet.reservation, own_pins(found, 9).get("reservation")

    there, gone = up("0/0/8", "0-1", 0, 1), up("0/0/8", "0-1")
    for each in (there, gone):
        each.pins["reservation"] = "held"
    assert planned("0..8", PriorState(existing_nodes=frozenset()), reservation="new") == ("new", "new")
    assert planned("0..8", there, reservation="new") == ("held", "held")
    assert planned("0..8", there) == planned(2, there) == ("held", "held")
    assert planned("0..8", gone) == (None, None)
    assert planned("0..8", gone, reservation="new") == ("new", "new")
    named = request_of(fleet("0..8").model_copy(update={"reservation": "own"}), previous=there)
    assert with_node_count(named).fleet.reservation == "own"
    assert "reservation" not in own_pins(with_node_count(named), 2)


def test_the_spares_of_a_fleet_are_recorded_with_what_it_is_to_have() -> None:
    def spares(nodes: object, previous: PriorState | None = None, **more: Any) -> FleetSpares | None:
        return spares_of(request(nodes, previous or PriorState(), **more))

    fixed = {"min": 4, "max": 4, "spare": 1}
    assert spares(fixed) == FleetSpares(count=1, of=5)
    assert spares(4) is None
    # Nodes above the minimum of a range end themselves.
    assert spares({"min": 2, "max": 8, "spare": 2}) == FleetSpares(count=2, of=4, least=4)
    grown = spares({"min": 2, "max": 8, "spare": 1}, up("3/3/9", "0-2", 0, 1, 2), at_least=9)
    assert grown == FleetSpares(count=1, of=9, least=3)
    # One that is missing is to come again: its place is no spare's.
    assert spares(fixed, up("5/5/5", "0-4", 0, 1, 2, 3)) == FleetSpares(count=1, of=5)
    assert spares_words(FleetSpares(count=1, of=5)).startswith("1 of 5 nodes is a spare: runs get it only")
    assert spares_words(FleetSpares(count=2, of=5)).startswith("2 of 5 nodes are spares: runs get them only")
