"""What a task asks for beside resources narrows it to some nodes; a refusal says what the nodes have."""

from __future__ import annotations

import pytest
from kit.ledgers.pureruns import fleet, node

from orch.runner.errors import NoFit
from orch.runner.placement.fleets import fitting
from orch.runner.placement.placement import place_task
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

EAST = {"region": "us-east-1", "instance_type": "p5.48xlarge", "price_hourly": 98.32}
WEST = {"region": "us-west-2", "instance_type": "p4d.24xlarge", "price_hourly": 32.77}
CLOUD = fleet(
    node(0, zone="us-east-1a", **EAST),
    node(1, zone="us-east-1b", reservation="cr-0123", **EAST),
    node(2, zone="us-west-2a", spot=True, **WEST),
    node(3, zone="us-west-2a", spot=True, reservation="projects/acme/reservations/held", **WEST),
    name="pool",
    backend="aws",
)
HERE = fleet(node(0, name="box-0"), node(1, name="box-1"), name="here")


def task(**more: object) -> Task:
    return Task.model_validate({"commands": ["x"], **more})


def usable(on: FleetState, **asked: object) -> list[str]:
    """The nodes that a task with these conditions may have."""
    found: list[str] = []
    for each in on.nodes:
        try:
            place_task(task(**asked), on.model_copy(update={"nodes": (each,)}))
        except NoFit:
            continue
        found.append(each.name)
    return found


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        ({"backends": ["aws"]}, "0123"),
        ({"backend": "gcp"}, ""),
        ({"regions": ["us-west-2", "eu-west-1"]}, "23"),
        ({"region": "us-east-1"}, "01"),
        ({"availability_zones": ["us-east-1b", "us-west-2a"]}, "123"),
        ({"zone": "us-east-1a"}, "0"),
        ({"zones": ["us-east-1a"]}, "0"),
        ({"instance_types": ["P5.*"]}, "01"),
        ({"instance_types": ["p4d.24xlarge", "g5*"]}, "23"),
        ({"spot_policy": "spot"}, "23"),
        ({"spot_policy": "on-demand"}, "01"),
        ({"spot_policy": "auto"}, "0123"),
        ({}, "0123"),
        ({"max_price": 50}, "23"),
        ({"max_price": "98.32"}, "0123"),
        ({"reservation": "cr-0123"}, "1"),
        ({"reservation": "held"}, "3"),
        ({"reservation": "projects/acme/reservations/held"}, "3"),
        ({"reservation": "projects/other/reservations/held"}, ""),
        ({"instances": ["n1", {"hostname": "10.0.0.4"}, {"fleet": "pool", "instance": 0}]}, "013"),
        ({"instances": [{"fleet": "other", "instance": 0}]}, ""),
        ({"exclude_nodes": ["n[0-1]", "n3"]}, "2"),
        ({"region": "us-east-1", "exclude_nodes": ["n0"]}, "1"),
    ],
)
def test_nodes_that_do_not_meet_a_condition_are_left_out(asked: dict[str, object], nodes: str) -> None:
    assert usable(CLOUD, **asked) == [f"n{index}" for index in nodes]


def test_nodes_that_nobody_sells_meet_every_price_and_no_place() -> None:
    assert usable(HERE, max_price=1) == ["box-0", "box-1"]
    assert usable(HERE, spot_policy="on-demand") == ["box-0", "box-1"]
    assert usable(HERE, region="us-east-1") == []
    assert usable(HERE, instance_types=["*"]) == []


def refusal(*fleets: FleetState, requested: str | None = None, **asked: object) -> NoFit:
    with pytest.raises(NoFit) as caught:
        fitting(task(**asked), {each.name: each for each in fleets}, requested)
    return caught.value


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"backend": "gcp"}, "`backends` asks for gcp, its nodes have backend aws"),
        (
            {"region": "eu-west-1"},
            "`regions` asks for eu-west-1, its nodes have region us-east-1, region us-west-2",
        ),
        ({"instance_types": ["p6*"]}, "asks for p6*, its nodes have type p5.48xlarge, type p4d.24xlarge"),
        (
            {"max_price": 20},
            "asks for $20.00 per hour at most, its nodes have a price of $98.32, a price of $32.77",
        ),
        ({"reservation": "cr-9"}, "its nodes have no reservation, reservation cr-0123, reservation held"),
        (
            {"region": "us-east-1", "spot_policy": "spot"},
            "`spot_policy` asks for spot, other nodes have the market on-demand",
        ),
        ({"exclude_nodes": ["n[0-3]"]}, "`exclude_nodes` leaves out n[0-3]"),
        (
            {"nodes": 2, "instances": ["n3"]},
            "1 of the 2 nodes that the task needs fits; `instances` asks for n3, its other nodes are n[0-2]",
        ),
        (
            {"region": "eu-west-1", "zone": "eu-west-1a", "max_price": 50},
            "`regions` asks for eu-west-1, its nodes have region us-east-1, region us-west-2; "
            "`availability_zones` asks for eu-west-1a, its nodes have zone us-east-1a, zone us-east-1b, "
            "zone us-west-2a",
        ),
    ],
)
def test_the_refusal_names_each_condition_and_what_the_nodes_have(
    asked: dict[str, object], told: str
) -> None:
    assert told in (refusal(CLOUD, **asked).detail or "")


def test_an_old_price_that_is_not_known_is_told() -> None:
    unknown = CLOUD.model_copy(update={"nodes": (CLOUD.nodes[0].model_copy(update={"price_hourly": None}),)})
    assert "its node has no price that is known" in (refusal(unknown, max_price=1000).detail or "")


def test_each_fleet_is_told_with_the_reason_nearest_to_fitting_the_nearest_fleet_first() -> None:
    small = fleet(node(0, memory_mib=4096), node(1, memory_mib=30_000), name="small")
    error = refusal(CLOUD, HERE, small, resources={"memory": "32GB", "cpu": 8}, region="us-east-1")
    assert error.detail == (
        "pool: node n0 has 16GB memory, the task asks for 32GB; "
        "small: `regions` asks for us-east-1, its nodes have no region; "
        "node n1 has 29.3GB memory, the task asks for 32GB; "
        "here: `regions` asks for us-east-1, its nodes have no region; "
        "node box-0 has 16GB memory, the task asks for 32GB"
    )
    near = refusal(HERE, small, resources={"memory": "32GB"})
    assert near.detail == (
        "small: node n1 has 29.3GB memory, the task asks for 32GB; "
        "here: node box-0 has 16GB memory, the task asks for 32GB"
    )
    assert near.fleets == ("small", "here")


def test_a_node_that_no_fleet_has_is_told_with_a_guess_and_the_nodes_there_are() -> None:
    error = refusal(CLOUD, HERE, instances=["n0", "bx-1"])
    assert (error.code, error.path) == ("ORCH246", "instances.1")
    assert error.summary == "no fleet here has a node 'bx-1'"
    assert (error.detail, error.hint) == ("here: box-[0-1]; pool: n[0-3]", "did you mean 'box-1'?")
    error = refusal(CLOUD, HERE, requested="here", instances=[{"fleet": "here", "instance": 7}])
    assert error.summary == "fleet here has no node 7"
    assert refusal(CLOUD, HERE, instances=[{"fleet": "hre", "instance": 0}]).hint == "did you mean 'here'?"
    error = refusal(CLOUD, HERE, exclude_nodes=["n[0-9]", "box-2"])
    assert (error.path, error.hint) == ("exclude_nodes.1", "did you mean 'box-0'?")


def test_a_run_on_one_fleet_may_exclude_nodes_of_others() -> None:
    asked = task(exclude_nodes=["n2", "box-0"])
    assert refusal(HERE, exclude_nodes=["n2"]).code == "ORCH246"
    assert fitting(asked, {"here": HERE}, "here", elsewhere=["n0", "n2"]) == (HERE,)


def test_folded_names_may_hold_nodes_that_are_not_there_now() -> None:
    assert fitting(task(exclude_nodes=["box-[1-9]"]), {"here": HERE}, None) == (HERE,)


def test_conditions_choose_among_fleets() -> None:
    fleets = {"pool": CLOUD, "here": HERE}
    assert fitting(task(backend="local"), fleets, None) == (HERE,)
    assert fitting(task(max_price=40, region="us-west-2"), fleets, None) == (CLOUD,)
    assert fitting(task(instances=["box-1"]), fleets, None) == (HERE,)


def test_a_node_is_recorded_as_before_where_it_is_neither_spot_nor_reserved() -> None:
    plain = CLOUD.nodes[0].model_dump(mode="json")
    assert not {"spot", "reservation"} & set(plain)
    kept = NodeState.model_validate(CLOUD.nodes[3].model_dump(mode="json"))
    assert (kept.spot, kept.reservation) == (True, "projects/acme/reservations/held")


PODS = fleet(
    NodeState.model_validate(
        {
            "index": 0,
            "name": "train-0",
            "runtime": "process",
            "region": "eks-prod",
            "access": {"kind": "kubernetes", "namespace": "ml"},
        }
    ),
    name="train",
    backend="kubernetes",
)


@pytest.mark.parametrize(
    "asked",
    [{"availability_zones": ["us-east-1a"]}, {"instance_types": ["p5.48xlarge"]}, {"regions": ["eks-prod"]}],
)
def test_zones_and_types_of_pods_are_for_their_scheduler(asked: dict[str, object]) -> None:
    assert usable(PODS, **asked) == ["train-0"]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            {"instance_types": ["p5.*"]},
            "asks for p5.*, its node has a scheduler that takes whole names alone",
        ),
        ({"spot_policy": "spot"}, "asks for spot, its node has a market that its cluster does not tell"),
        ({"max_price": 3}, "asks for $3.00 per hour at most, its node has no price that is known"),
        ({"regions": ["us-east-1"]}, "asks for us-east-1, its node has region eks-prod"),
    ],
)
def test_what_a_cluster_does_not_tell_is_not_ignored(asked: dict[str, object], why: str) -> None:
    with pytest.raises(NoFit) as caught:
        place_task(task(**asked), PODS)
    assert why in caught.value.text()
