"""The interconnect of jobs on pods: the variables of the pods, and not those of machines."""

from __future__ import annotations

import pytest
from kit.kubernetes.gangcases import written
from kit.ledgers.pureruns import compiled, fleet

from orch.runner.kubernetes.gangs.fabric import fabric_variables
from orch.spec.state import FleetState, NodeState


def pods(name: str, interconnect: str, count: int = 2) -> FleetState:
    """A fleet whose run has so many pods of the queue of a golden case."""
    queue = written(name).queue
    nodes = [
        NodeState.model_validate(
            {
                "index": index,
                "name": f"train-{index}",
                "access": {"kind": "kubernetes", "namespace": "ml", "pod": f"train-{index}"},
                "runtime": "process",
                "internal_ip": f"10.0.0.{index + 1}",
                "gpus": queue.gpus,
            }
        )
        for index in range(count)
    ]
    return fleet(*nodes, backend="kubernetes", interconnect=interconnect, queue=queue)


@pytest.mark.parametrize(
    ("name", "interconnect"),
    [
        ("efa", "efa"),
        ("tcpx", "tcpx"),
        ("tcpxo", "tcpxo"),
        ("gke-roce", "gib"),
        ("rdma-shared", "infiniband"),
        ("rdma-hostdev", "infiniband"),
        ("compute-domain", "ethernet"),
    ],
)
def test_jobs_on_pods_use_the_fabric_as_their_pods_have_it(name: str, interconnect: str) -> None:
    made = compiled(pods(name, interconnect), commands=["true"], nodes=2)
    wanted = fabric_variables(written(name).queue)
    assert wanted
    for environment in made.environments:
        assert {key: environment[key] for key in wanted} == wanted
        assert environment.get("NCCL_NET") != "Socket"
    assert made.plan.fabric.devices == ()
    assert made.plan.fabric.mounts == ()


def test_a_job_of_one_pod_and_pods_without_a_fabric_are_as_on_machines() -> None:
    alone = compiled(pods("efa", "efa", count=1), commands=["true"])
    assert "NCCL_NET" not in alone.environments[0]
    plain = compiled(pods("job", "ethernet"), commands=["true"], nodes=2)
    assert plain.environments[0]["NCCL_NET"] == "Socket"


def test_a_tasks_own_variable_wins() -> None:
    made = compiled(pods("efa", "efa"), commands=["true"], nodes=2, env={"NCCL_NET": "Socket"})
    assert made.environments[0]["NCCL_NET"] == "Socket"
