"""What a task asks of nodes beside minimums: upper ends, what GPUs are and can, architecture, disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.runner.errors import NoFit
from orch.runner.placement.placement import place_task
from orch.spec.loader.load import load_paths
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus, NodeState


def lab(gpu: str | None, memory_mib: int = 81_559, **more: Any) -> FleetState:
    gpus = Gpus(count=8, vendor="nvidia", name=gpu, memory_mib=memory_mib) if gpu else Gpus()
    node = NodeState(
        index=0,
        name="n0",
        address="127.0.0.1",
        user="root",
        host_key="k",
        cpus=64,
        memory_mib=1 << 20,
        gpus=gpus,
        **more,
    )
    return FleetState(name="lab", stack="lab", backend="ssh", placement="any", nodes=(node,))


def fits(fleet: FleetState, **resources: Any) -> bool:
    try:
        place_task(Task.model_validate({"commands": ["x"], "resources": resources}), fleet)
    except NoFit:
        return False
    return True


@pytest.mark.parametrize(
    ("gpu", "resources", "good"),
    [
        ("Tesla V100-SXM2-32GB", {"gpu": {"compute_capability": "9.0"}}, False),
        ("NVIDIA H100 80GB HBM3", {"gpu": {"compute_capability": "9.0"}}, True),
        ("NVIDIA H100 80GB HBM3", {"gpu": {"total_memory": "640GB"}}, True),
        ("NVIDIA H100 80GB HBM3", {"gpu": {"total_memory": "1TB.."}}, False),
        ("NVIDIA H100 80GB HBM3", {"gpu": {"total_memory": "..320GB"}}, False),
        (None, {"cpu": "65.."}, False),
        (None, {"cpu": "4..32"}, True),  # of CPUs and memory an upper end limits the job
        (None, {"memory": "..512GB"}, True),
    ],
)
def test_a_node_that_is_not_what_was_asked_for_is_left_out(
    gpu: str | None, resources: Any, good: bool
) -> None:
    assert fits(lab(gpu, 32_768 if gpu and "V100" in gpu else 81_559), **resources) is good


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ({"cpu": "arm:4.."}, None),
        ({"cpu": "x86:4.."}, "node n0 is arm, the task asks for x86"),
        ({"disk": "200GB"}, None),
        ({"disk": "100GB.."}, None),
        ({"disk": "100GB..500GB"}, None),
        ({"disk": "500GB.."}, "node n0 has a disk of 200GB, the task asks for 500GB.."),
        ({"disk": "..100GB"}, "node n0 has a disk of 200GB, the task asks for ..100GB"),
        ({"disk": "100GB"}, "node n0 has a disk of 200GB, the task asks for 100GB"),
        ({}, None),
    ],
    ids=str,
)
def test_a_node_has_the_architecture_and_disk_that_a_task_asks_for(
    tmp_path: Path, resources: Any, why: str | None
) -> None:
    assert reason(tmp_path, resources, lab(None, arch="arm", disk_mib=200 << 10)) == why


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ({"cpu": "x86:4.."}, "the architecture of node n0 is not known, the task asks for x86"),
        ({"disk": "100GB.."}, "the disk of node n0 is not known, the task asks for one of 100GB.."),
        ({"cpu": 4}, None),
    ],
    ids=str,
)
def test_what_is_not_known_of_a_node_fits_nobody_who_asks_for_it(
    tmp_path: Path, resources: Any, why: str | None
) -> None:
    assert reason(tmp_path, resources, lab(None)) == why


def reason(folder: Path, resources: Any, fleet: FleetState) -> str | None:
    """Why a task that is to be run does not fit, as a user reads it; None when it does."""
    file = folder / "task.yml"
    file.write_text(json.dumps({"type": "task", "name": "job", "commands": ["x"], "resources": resources}))
    ((_, task),) = load_paths([file], launch=("task",)).require().of(Task)
    try:
        place_task(task, fleet)
    except NoFit as error:
        return error.detail
    return None
