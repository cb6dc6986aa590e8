"""What a task asks of nodes beside minimums: upper ends, GPUs together, what their model can."""

from __future__ import annotations

from typing import Any

import pytest

from orch.runner.errors import NoFit
from orch.runner.placement import place
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus, NodeState


def lab(gpu: str | None, memory_mib: int = 81_559) -> FleetState:
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
    )
    return FleetState(name="lab", stack="lab", backend="ssh", placement="any", nodes=(node,))


def fits(fleet: FleetState, **resources: Any) -> bool:
    try:
        place(Task.model_validate({"commands": ["x"], "resources": resources}), fleet)
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
        (None, {"cpu": "4..32"}, False),
        (None, {"cpu": "4..64"}, True),
        (None, {"memory": "..512GB"}, False),
        (None, {"memory": "8GB..1TB"}, True),
    ],
)
def test_a_node_that_is_not_what_was_asked_for_is_left_out(
    gpu: str | None, resources: Any, good: bool
) -> None:
    assert fits(lab(gpu, 32_768 if gpu and "V100" in gpu else 81_559), **resources) is good
