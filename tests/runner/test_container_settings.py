"""What a task says of its container, as options of Docker: limits, privileges, the job's own Docker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch.runner.launch.compile import CompiledRun, compile_run
from orch.runner.launch.run_request import RunRequest
from orch.runner.node.container_start import start_command
from orch.runner.node.stage import stage
from orch.runner.placement.placement import place_task
from orch.runner.plan.run_plan import RunPlan
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus, NodeState

SIXTY_FOUR = {"cpus": 64, "memory_mib": 512 << 10}


def compiled(
    task: dict[str, Any], node: dict[str, Any], backend: str = "ssh", *, simulated: bool = False
) -> CompiledRun:
    record = NodeState.model_validate(
        {"index": 0, "name": "n0", "address": "127.0.0.1", "user": "root", "host_key": "k", **node}
    )
    fleet = FleetState(name="lab", stack="lab", backend=backend, nodes=(record,), simulated=simulated)
    read = Task.model_validate({"commands": ["true"], **task})
    return compile_run(RunRequest(read, "job", 1, fleet, place_task(read, fleet), "image", Path("/base")))


def started(plan: RunPlan) -> str:
    return start_command(plan, 0, (stage(plan, 0, {}, None),)).text


@pytest.mark.parametrize(
    ("resources", "node", "options", "absent"),
    [
        ({"memory": "8GB..64GB"}, SIXTY_FOUR, "--memory=65536m", "--cpu"),
        ({"cpu": "2..4"}, SIXTY_FOUR, "--cpu-period=100000 --cpu-quota=400000", "--memory"),
        # Nobody knows what a local node has that shares all of its machine.
        ({"memory": "..1GB", "cpu": "..2"}, {}, "--cpu-quota=200000 --memory=1024m", "--cpus"),
        # A node that has no more than the upper end is the limit itself.
        ({"memory": "8GB..1TB", "cpu": "1..64"}, SIXTY_FOUR, "", "--memory"),
        ({"memory": "8GB..1TB", "cpu": "1..64"}, SIXTY_FOUR, "", "--cpu"),
        ({"memory": "32GB", "cpu": "8"}, SIXTY_FOUR, "", "--memory"),
        ({}, SIXTY_FOUR, "", "--cpu"),
        # A part of a node: the share of its blocks, or less.
        (
            {"gpu": 2, "cpu": "..8"},
            {**SIXTY_FOUR, "blocks": 8},
            "--cpu-quota=800000 --memory=131072m",
            "--cpus",
        ),
        ({"gpu": 2, "memory": "..1TB"}, {**SIXTY_FOUR, "blocks": 8}, "--cpus=16 --memory=131072m", "quota"),
    ],
)
def test_upper_ends_limit_a_container_and_minimums_do_not(
    resources: dict[str, Any], node: dict[str, Any], options: str, absent: str
) -> None:
    gpus = Gpus(count=8, vendor="nvidia", name="H100") if "gpu" in resources else Gpus()
    text = started(compiled({"resources": resources}, {**node, "gpus": gpus}).plan)
    assert options in text
    assert absent not in text


@pytest.mark.parametrize("wish", ["privileged", "docker"])
def test_a_privileged_job_has_all_on_a_machine_and_what_there_is_on_a_node_that_is_a_container(
    wish: str,
) -> None:
    task = {wish: "true"}
    assert "--privileged" in started(compiled(task, {}).plan)
    assert compiled(task, {}).warnings == ()
    for on in (compiled(task, {}, "local"), compiled(task, {}, "aws", simulated=True)):
        assert "--privileged" not in started(on.plan)
        assert "--cap-add=SYS_ADMIN" in started(on.plan)
        assert "nodes are containers here" in on.warnings[0]
    assert "--cap-add=SYS_ADMIN" not in started(compiled({}, {}, "local").plan)


def test_the_jobs_own_docker_starts_before_its_commands() -> None:
    script = compiled({"docker": "true", "commands": ["docker info"]}, {}).plan.ranks[0].script
    assert script.index("start-docker.sh") < script.index("docker info")
    assert "start-docker.sh" not in compiled({}, {}).plan.ranks[0].script


def test_simulated_accelerators_count_and_are_given_to_no_container() -> None:
    gpus = {"gpus": Gpus(count=8, vendor="nvidia", name="H100", memory_mib=81920), "blocks": 8}
    run = compiled({"resources": {"gpu": "H100:2"}}, gpus, "local", simulated=True)
    assert run.environments[0]["DSTACK_GPUS_PER_NODE"] == "2"
    assert "--gpus" not in started(run.plan)


def test_a_plan_that_an_earlier_version_wrote_has_no_limits_of_its_own() -> None:
    data = compiled({}, SIXTY_FOUR).plan.model_dump(mode="json")
    for rank in data["ranks"]:
        del rank["max_cpus"], rank["max_memory_mib"]
    assert "--memory" not in started(RunPlan.model_validate(data))
