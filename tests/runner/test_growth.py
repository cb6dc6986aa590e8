"""What is decided about a run takes steps in proportion to its ranks, not to their square.

Function calls are counted, not seconds: the count is the same on a busy machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kit.ledgers.pureruns import fleet, node

from orch.runner.launch.compile import compile_run
from orch.runner.launch.run_request import RunRequest
from orch.runner.placement.placement import place_task
from orch.spec.models import Task

pytestmark = pytest.mark.quick

GPUS = {"count": 8, "name": "H100", "memory_mib": 81920, "vendor": "nvidia"}
TASKS: dict[str, dict[str, Any]] = {
    "commands": {
        "commands": ["echo ${{ orch.node_rank }} $SLURM_NODEID"],
        "env": {"A": "${{ orch.node_rank }}"},
    },
    "torchrun": {"torchrun": {"program": "train.py"}, "slurm_env": True},
    "mpirun": {"mpirun": {"program": "./solve"}, "slurm_env": True},
}


def calls(work: Callable[[], object]) -> int:
    """Count the Python function calls and generator steps of `work`."""
    count = 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("kind", TASKS)
def test_a_run_of_four_times_the_ranks_takes_four_times_the_steps(kind: str) -> None:
    def steps(ranks: int) -> tuple[int, int]:
        nodes = [
            node(index, internal_ip=f"10.0.{index // 256}.{index % 256}", gpus=GPUS) for index in range(ranks)
        ]
        on, task = fleet(*nodes), Task.model_validate({**TASKS[kind], "nodes": ranks})
        seats = place_task(task, on)
        request = RunRequest(task, "job", 1, on, seats, "image", Path("/base"))
        return calls(lambda: place_task(task, on)), calls(lambda: compile_run(request))

    steps(2)  # caches of templates and patterns
    few, many = steps(64), steps(256)
    assert many[0] < 4.5 * few[0], "place_task"
    assert many[1] < 4.5 * few[1], "compile_run"
