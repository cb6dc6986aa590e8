"""Accelerators that local nodes have in number: which kind a fleet gets, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from orch.components.local.facts import LocalFacts
from orch.components.local.plan import LocalPlan, plan
from orch.components.request import PriorState
from orch.spec.findings import PlanError
from orch.spec.models import Fleet
from orch.spec.models.backends.local import LocalSettings

FACTS = LocalFacts(cpus=4, memory_mib=8192, node_image="orch/node:new")


def planned(simulate: object, nodes: int = 2, **more: Any) -> LocalPlan:
    document = {"type": "fleet", "name": "lab", "backend": "local", "nodes": str(nodes), **more}
    settings = LocalSettings.model_validate({"type": "local", "simulate_gpu": simulate})
    return plan(Fleet.model_validate(document), FACTS, PriorState(), "abc", settings=settings)


@pytest.mark.parametrize(
    ("simulate", "gpu", "has"),
    [
        ("H100:8", "H100:8", (8, "nvidia", "H100", 80)),
        ("H100:8", None, (8, "nvidia", "H100", 80)),
        ("H100:8", "0..8", (8, "nvidia", "H100", 80)),
        ("H100:8", "1..4", (4, "nvidia", "H100", 80)),
        ("H100:8", "1", (1, "nvidia", "H100", 80)),
        ("H100:8", "0", (0, None, None, None)),
        ("H100:8", "nvidia:1..8", (8, "nvidia", "H100", 80)),
        ("A100:8", "A100:40GB:8", (8, "nvidia", "A100", 40)),
        ("A100:80GB:8", "A100-80GB:2", (2, "nvidia", "A100", 80)),
        (["H100:8", "L4:24GB:1", "MI300X:8"], "24GB", (1, "nvidia", "L4", 24)),
        (["H100:8", "L4:24GB:1", "MI300X:8"], "amd:8", (8, "amd", "MI300X", 192)),
        (["H100:8", "L4:24GB:1"], {"name": "H100", "total_memory": "..320GB"}, (4, "nvidia", "H100", 80)),
        (["V100:8", "H100:8"], {"compute_capability": "9.0", "count": 8}, (8, "nvidia", "H100", 80)),
        ({"name": "H100", "count": 2}, "H100", (2, "nvidia", "H100", 80)),
        ("4", "1..", (4, "nvidia", None, None)),
        ("Later9000:2", "Later9000:2", (2, "nvidia", "Later9000", None)),
    ],
    ids=str,
)
def test_a_node_has_the_first_kind_that_the_fleet_fits_and_as_many_as_it_permits(
    simulate: object, gpu: object, has: tuple[int, str | None, str | None, int | None]
) -> None:
    gpus = planned(simulate, **({} if gpu is None else {"resources": {"gpu": gpu}})).gpus
    memory = None if gpus.memory_mib is None else gpus.memory_mib // 1024
    assert (gpus.count, gpus.vendor, gpus.name, memory) == has


@pytest.mark.parametrize(
    ("simulate", "gpu", "summary", "hint"),
    [
        ([], "A100:80GB:8", "local nodes have no accelerators", "`simulate_gpu: A100:80GB:8`"),
        (
            "H100:8",
            "A100:80GB:8",
            "no simulated accelerators fit A100:80GB:8: `simulate_gpu` has H100:8",
            "add",
        ),
        ("H100:8", "H100:16", "no simulated accelerators fit H100:16", "add `H100:16`"),
        (["H100:8", "L4:1"], "amd:8", "`simulate_gpu` has H100:8, L4:1", "add `amd:8`"),
    ],
)
def test_what_no_kind_fits_is_an_error_with_what_to_write(
    simulate: object, gpu: str, summary: str, hint: str
) -> None:
    with pytest.raises(PlanError) as caught:
        planned(simulate, resources={"gpu": gpu})
    assert (caught.value.code, caught.value.path) == ("ORCH211", "resources.gpu")
    assert summary in caught.value.summary
    assert hint in (caught.value.hint or "")


def test_blocks_cut_simulated_accelerators_as_they_cut_real_ones() -> None:
    assert planned("H100:8", blocks="auto").blocks == 8
    assert planned("H100:8", blocks="4").blocks == 4
    # A range leaves room for a number that the blocks divide.
    assert planned("H100:8", blocks="3", resources={"gpu": "1..8"}).gpus.count == 6
    with pytest.raises(PlanError) as caught:
        planned("H100:8", blocks="3", resources={"gpu": "8"})
    assert (caught.value.code, caught.value.path) == ("ORCH147", "blocks")


def test_the_plan_says_that_they_are_simulated_and_names_their_device_files() -> None:
    made = planned("H100:2")
    (told,) = [each for each in made.reasons if "accelerators" in each]
    assert told == "accelerators per node: 2 H100 80GB, simulated: jobs get their number and no device"
    assert made.placeholders == ("/dev/nvidia0", "/dev/nvidia1")
    without = planned([])
    assert (without.placeholders, without.gpus.count) == ((), 0)
    assert not any("accelerators" in each for each in without.reasons)


@pytest.mark.parametrize(
    ("settings", "resources", "limits"),
    [
        ({"cpus": 2}, {}, (1, None)),
        ({"cpus": 3, "memory": "1GB"}, {}, (1.5, 512)),
        ({"cpus": 4, "memory": "4GB"}, {"cpu": "2", "memory": "1GB"}, (2, 1024)),
    ],
)
def test_settings_of_the_backend_limit_what_the_nodes_of_a_fleet_use_together(
    settings: dict[str, Any], resources: dict[str, Any], limits: tuple[float, int | None]
) -> None:
    fleet = Fleet.model_validate({"name": "lab", "backend": "local", "nodes": "2", "resources": resources})
    limited = LocalSettings.model_validate({"type": "local", **settings})
    made = plan(fleet, FACTS, PriorState(), "abc", settings=limited)
    assert {(each.cpus, each.memory_mib) for each in made.nodes} == {limits}


def test_nodes_that_ask_for_more_than_the_backend_lets_them_use_are_refused() -> None:
    fleet = Fleet.model_validate({"name": "lab", "backend": "local", "nodes": "2", "resources": {"cpu": "2"}})
    with pytest.raises(PlanError) as caught:
        plan(
            fleet,
            FACTS,
            PriorState(),
            "abc",
            settings=LocalSettings.model_validate({"type": "local", "cpus": 3}),
        )
    assert (caught.value.code, caught.value.path) == ("ORCH210", "resources.cpu")
