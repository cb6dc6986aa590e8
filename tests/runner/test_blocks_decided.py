"""Blocks as decisions: how a node is cut, what fits, where a job goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.runner.errors import NodeCordoned, NoFit
from orch.runner.launch.compile import compile_run
from orch.runner.launch.run_request import RunRequest
from orch.runner.node.container_start import start_command
from orch.runner.node.stage import stage
from orch.runner.placement.availability import NodeAvailability
from orch.runner.placement.block_resources import BlockResources, share_of
from orch.runner.placement.node_fit import blocks_needed
from orch.runner.placement.placement import cordoned_message, place_task
from orch.spec.grammar.blocks import blocks_of
from orch.spec.grammar.values import Problem
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus, NodeState

H100 = Gpus(count=8, vendor="nvidia", name="NVIDIA H100 80GB HBM3", memory_mib=81559)


def node(index: int, **more: object) -> NodeState:
    given: dict[str, object] = {
        "index": index,
        "name": f"n{index}",
        "address": "127.0.0.1",
        "user": "root",
        "host_key": "ssh-ed25519 AAAA",
        "internal_ip": f"10.0.0.{index + 1}",
        "cpus": 128,
        "memory_mib": 2 << 20,
        "gpus": H100,
        "blocks": 8,
    }
    return NodeState.model_validate(given | more)


def fleet(*nodes: NodeState, placement: str = "cluster") -> FleetState:
    given = {"name": "lab", "stack": "lab", "backend": "ssh", "placement": placement, "nodes": nodes}
    return FleetState.model_validate(given)


def task(**more: object) -> Task:
    return Task.model_validate({"commands": ["true"], **more})


# --- how a node is cut


def test_eight_gpus_128_cpus_and_2_tb_in_eight_blocks():
    assert share_of(node(0), 1) == BlockResources(gpus=1, cpus=16, memory_mib=256 << 10)
    assert share_of(node(0), 3) == BlockResources(gpus=3, cpus=48, memory_mib=768 << 10)
    assert share_of(node(0), 8) == BlockResources(gpus=8, cpus=128, memory_mib=2 << 20)


@pytest.mark.parametrize(
    ("cpus", "blocks", "share"), [(10, 4, 2), (10, 3, 3), (2, 8, 0.25), (7.5, 2, 3), (None, 2, None)]
)
def test_cpus_are_divided_rounding_down_and_less_than_one_is_a_fraction(
    cpus: float | None, blocks: int, share: float | None
):
    assert share_of(node(0, gpus=Gpus(), cpus=cpus, blocks=blocks), 1).cpus == share


@pytest.mark.parametrize(
    ("setting", "gpus", "cpus", "blocks"),
    [
        ("auto", 8, 128, 8),
        ("auto", 0, 4, 4),
        ("auto", 0, 0.5, 1),
        (4, 8, 128, 4),
        (3, 0, 128, 3),
        (1, 8, 128, 1),
    ],
)
def test_auto_is_the_gpus_else_the_cpus(setting: int | str, gpus: int, cpus: float, blocks: int):
    assert blocks_of(setting, gpus, cpus) == blocks


def test_gpus_must_divide():
    with pytest.raises(Problem, match="8 GPUs do not split into 3 blocks") as caught:
        blocks_of(3, 8, 128)
    assert (caught.value.code, caught.value.hint) == ("ORCH147", "possible: 1, 2, 4, 8")


def test_a_container_gets_the_limits_of_its_blocks_and_a_whole_node_none():
    def text(**more: object) -> str:
        on, read = fleet(node(0)), task(**more)
        plan = compile_run(RunRequest(read, "job", 1, on, place_task(read, on), "image", Path("/base"))).plan
        return start_command(plan, 0, (stage(plan, 0, {}, None),)).text

    part = text(resources={"gpu": 2})
    assert "--cpus=32 --memory=524288m" in part
    assert "--gpus=all" not in part
    whole = text(resources={"gpu": 8})
    assert "--gpus=all" in whole
    assert "--cpus" not in whole
    assert "--memory" not in whole


# --- what fits


@pytest.mark.parametrize(
    ("resources", "blocks"),
    [
        ({}, 1),
        ({"cpu": 17}, 2),
        ({"memory": "300GB"}, 2),
        ({"shm_size": "600GB"}, 3),
        ({"gpu": "H100:80GB:2"}, 2),
        ({"shm_size": "9TB"}, 8),
    ],
)
def test_shared_memory_is_memory_of_the_job(resources: dict[str, object], blocks: int):
    assert blocks_needed(task(resources=resources).resources, node(0)) == blocks


@pytest.mark.parametrize(
    ("given", "on", "code", "told", "hint"),
    [
        (
            {"nodes": 2},
            fleet(node(0), node(1), placement="any"),
            "ORCH241",
            "distributed tasks need a fleet with `placement: cluster`",
            "add `placement: cluster` to lab",
        ),
        (
            {"nodes": 2, "resources": {"gpu": 1}},
            fleet(node(0), node(1)),
            "ORCH242",
            "a distributed task takes whole instances (all 8 blocks), but asks for 1 GPU",
            "ask for `gpu: 8`",
        ),
        (
            {"resources": {"gpu": 1}},
            fleet(node(0, blocks=1)),
            "ORCH243",
            "no instance fits: a job takes the whole instance of 8 GPUs, but asks for 1 GPU",
            "set `blocks: 8` on the fleet, or ask for `gpu: 1..8`",
        ),
        (
            {"resources": {"gpu": 1}},
            fleet(node(0, blocks=4)),
            "ORCH243",
            "no instance fits: a job takes at least 1 block of 2 GPUs, but asks for 1 GPU",
            "set `blocks: 8` on the fleet, or ask for `gpu: 1..2`",
        ),
        (
            {"nodes": 2, "resources": {"gpu": 2}},
            fleet(node(0, blocks=1), node(1, blocks=1)),
            "ORCH243",
            "no instance fits: a job takes the whole instance of 8 GPUs, but asks for 2 GPUs",
            "ask for `gpu: 8`",
        ),
    ],
)
def test_a_count_that_matches_nothing_is_told_with_what_would(
    given: dict[str, object], on: FleetState, code: str, told: str, hint: str
):
    with pytest.raises(NoFit) as caught:
        place_task(task(**given), on)
    assert (caught.value.code, caught.value.summary, caught.value.hint) == (code, told, hint)
    assert caught.value.fleets == ("lab",)


@pytest.mark.parametrize("gpu", ["1..8", "H100", "80GB", "nvidia", "nvidia:H100:80GB:1", "0", "8"])
def test_what_fits_is_taken(gpu: str):
    assert place_task(task(resources={"gpu": gpu}), fleet(node(0)))


@pytest.mark.parametrize(
    ("gpu", "why"),
    [("A100", "NVIDIA H100 80GB HBM3 GPUs"), ("amd:1..", "nvidia accelerators"), ("40GB", "GPUs of 80GB")],
)
def test_another_model_vendor_or_size_does_not_fit(gpu: str, why: str):
    with pytest.raises(NoFit) as caught:
        place_task(task(resources={"gpu": gpu}), fleet(node(0)))
    assert why in (caught.value.detail or "")


# --- where a job goes


def test_ranks_go_by_rack_before_anything_else():
    nodes = [node(0, rack="b"), node(1, rack="a", topology=("z",)), node(2, rack="b"), node(3, rack="a")]
    seats = place_task(task(nodes=4), fleet(*nodes))
    assert [seat.node.name for seat in seats] == ["n3", "n1", "n0", "n2"]


def test_a_part_goes_where_the_least_is_free_and_still_enough():
    on = fleet(node(0), node(1), node(2))
    busy = {"n0": NodeAvailability(busy=0), "n1": NodeAvailability(busy=6), "n2": NodeAvailability(busy=7)}

    def first(gpus: int) -> str:
        return place_task(task(resources={"gpu": gpus}), on, busy)[0].node.name

    assert [first(gpus) for gpus in (1, 2, 3)] == ["n2", "n1", "n0"]


def test_nodes_that_do_not_answer_come_last():
    on = fleet(node(0), node(1))
    assert (
        place_task(task(), on, {"n0": NodeAvailability(usable=False), "n1": NodeAvailability(busy=8)})[
            0
        ].node.name
        == "n1"
    )


def test_cordoned_nodes_are_left_out_and_told():
    on = fleet(node(0), node(1), node(2))
    marks = {"n0": NodeAvailability(cordon="fan"), "n2": NodeAvailability(cordon="disk")}
    assert [seat.node.name for seat in place_task(task(), on, marks)] == ["n1"]
    assert cordoned_message(on, marks) == "2 nodes are cordoned: n0 (fan), n2 (disk)"
    assert cordoned_message(on, {}) is None
    with pytest.raises(NodeCordoned, match=r"2 nodes are cordoned: n0 \(fan\), n2 \(disk\)"):
        place_task(task(nodes=2), on, marks)
