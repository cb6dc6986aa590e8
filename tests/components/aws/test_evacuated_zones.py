"""Zones that a fleet was moved out of: where its nodes go then, and where a cluster finds room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.planning import request_of

from orch.components.aws.account import gather_facts
from orch.components.aws.backend import AwsBackend
from orch.components.registry import planning
from orch.components.registry.backends import backend
from orch.components.request import PriorState
from orch.rehearsal.aws import client_hook
from orch.rehearsal.aws.account import Cloud
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings

A, B, C = "use1-az2", "use1-az4", "use1-az6"
ZONES = ["us-east-1a", "us-east-1b", "us-east-1c"]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    cloud = Cloud.create(tmp_path / "cloud")
    cloud.turn(quotas={"L-417A185B": 2000})
    yield cloud
    gather_facts.enabled.cache_clear()  # what is kept of this account


@pytest.fixture
def session(cloud: Cloud) -> Any:
    return client_hook.session(cloud)


def planned(session: Any, pins: Mapping[str, str], evacuated: frozenset[str], **more: Any) -> Any:
    asked = {key: more.pop(key) for key in ("leaving", "moves") if key in more}
    fleet = {"type": "fleet", "name": "p5", "backends": ["aws"], "nodes": 3, "placement": "any"}
    written = {**fleet, "instance_types": ["p5.48xlarge"], "regions": ["us-east-1"], **more}
    there = frozenset(f"p5-{index}" for index in range(3)) if pins else None
    prior = PriorState(dict(pins), backend="aws" if pins else None, existing_nodes=there)
    model = Fleet.model_validate({"availability_zones": ZONES, **written})
    request = request_of(model, AwsSettings(), previous=prior, session=session, evacuated=evacuated, **asked)
    return planning.compile_fleet(request)


def places(made: Any) -> list[tuple[str, list[int]]]:
    return [(group.zone, [node.index for node in group.nodes]) for group in made.plan.node_groups]


@pytest.fixture
def pins(session: Any) -> dict[str, str]:
    made = planned(session, {}, frozenset())
    assert places(made) == [(A, [0, 1, 2])]
    return dict(made.plan.pins)


def test_a_new_fleet_goes_elsewhere_and_one_without_another_zone_is_told_so(session: Any) -> None:
    assert places(planned(session, {}, frozenset({A}))) == [(B, [0, 1, 2])]
    assert places(planned(session, {}, frozenset({A, B}))) == [(C, [0, 1, 2])]
    with pytest.raises(PlanErrors) as error:
        planned(session, {}, frozenset({A}), availability_zones=["us-east-1a"])
    (finding,) = error.value.findings
    assert (finding.code, finding.path) == ("ORCH426", "availability_zones")


def test_what_is_there_stays_and_what_is_missing_goes_elsewhere(session: Any, pins: dict[str, str]) -> None:
    kept = planned(session, pins, frozenset({A}))
    assert places(kept) == [(A, [0, 1, 2])]
    assert kept.plan.pins == pins
    grown = planned(session, pins, frozenset({A}), nodes=5)
    assert places(grown) == [(A, [0, 1, 2]), (B, [3, 4])]
    assert not grown.moves
    # The other places that it may try leave the zone out, too.
    assert all(A not in place.words for place in grown.more())
    assert any(C in place.words for place in grown.more())


def test_nodes_that_leave_are_made_elsewhere_first_and_all_or_none_of_them(
    session: Any, pins: dict[str, str]
) -> None:
    moved = planned(session, pins, frozenset({A}), leaving=frozenset({0, 2}))
    assert places(moved) == [(A, [1]), (B, [0, 2])]
    first, second = moved.plan.node_groups
    assert (first.moved, second.moved) == ((), ("p5-0", "p5-2"))
    assert moved.whole
    # What was decided is kept, also when nobody is left where the fleet began.
    later = planned(session, moved.plan.pins, frozenset({A}))
    assert places(later) == [(A, [1]), (B, [0, 2])]
    assert later.plan.pins == moved.plan.pins
    last = planned(session, moved.plan.pins, frozenset({A}), leaving=frozenset({1}))
    assert places(last) == [(A, []), (B, [0, 1, 2])]
    assert places(planned(session, last.plan.pins, frozenset({A}))) == places(last)
    # Taken back, the zone is one as others are; nothing returns by itself.
    assert places(planned(session, last.plan.pins, frozenset())) == places(last)


def test_a_cluster_leaves_as_a_whole_and_is_not_split(session: Any) -> None:
    cluster: dict[str, Any] = {"placement": "cluster"}
    pins = dict(planned(session, {}, frozenset(), **cluster).plan.pins)
    stays = planned(session, pins, frozenset({A}), **cluster)
    assert (places(stays), stays.moves) == ([(A, [0, 1, 2])], False)
    moved = planned(session, pins, frozenset({A}), moves=True, **cluster)
    assert (places(moved), moved.moves) == ([(B, [0, 1, 2])], True)
    # Once it has moved, the same request moves it no more.
    again = planned(session, moved.plan.pins, frozenset({A}), moves=True, **cluster)
    assert (places(again), again.moves) == ([(B, [0, 1, 2])], False)
    with pytest.raises(PlanErrors) as error:
        planned(session, pins, frozenset({A}), nodes=4, **cluster)
    assert [each.code for each in error.value.findings] == ["ORCH427"]


def test_room_for_a_cluster_is_told_without_keeping_any(cloud: Cloud, session: Any) -> None:
    fleet = Fleet.model_validate(
        {
            **{"type": "fleet", "name": "p5", "backends": ["aws"], "nodes": 3, "placement": "cluster"},
            **{"instance_types": ["p5.48xlarge"], "regions": ["us-east-1"], "availability_zones": ZONES},
        }
    )
    prior = PriorState({"backend": "aws", "zone": A, "region": "us-east-1"}, backend="aws")
    asked = request_of(fleet, AwsSettings(), previous=prior, session=session, evacuated=frozenset({A}))
    asked = replace(asked, moves=True)
    cloud.turn(capacity={f"p5.48xlarge@us-east-1{zone}": room for zone, room in {"b": 2, "c": 3}.items()})
    room = planning.room_for(asked, "aws", 3, "tests/p5/abc123")
    assert room is not None
    assert C in (room.place or "")
    assert len(room.full) == 1
    assert f"{B}, on demand" in room.full[0]
    cloud.turn(capacity={f"p5.48xlarge@us-east-1{zone}": 2 for zone in "bc"})
    none = planning.room_for(asked, "aws", 3, "tests/p5/abc123")
    assert none is not None
    assert (none.place, len(none.full)) == (None, 2)
    states = {doc["State"] for doc in cloud.things("capacity-reservation").values()}
    assert states <= {"cancelled"}
    spot = replace(asked, fleet=fleet.model_copy(update={"spot_policy": "spot"}))
    assert AwsBackend().room(spot, 3, "tests/p5/abc123") is None


def test_a_zone_has_the_names_of_the_account_and_its_id(session: Any) -> None:
    fleet = Fleet.model_validate({"type": "fleet", "name": "p5", "backends": ["aws"], "nodes": 1})
    zones = backend("aws").zone_names(request_of(fleet, AwsSettings(), session=session), "us-east-1")
    assert zones is not None
    assert (zones["us-east-1a"], zones[A]) == (A, A)
    assert backend("local").zone_names(request_of(fleet), "") is None
