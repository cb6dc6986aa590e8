"""Pods of the simulated RunPod that containers of this machine stand for: they run what it was given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.runpod_lab import Lab
from kit.nodes.labmachine import docker, wait_until

from orch import images
from orch.components.cloud.machines.host_keys import private_host_key, public_host_key
from orch.components.runpod.account.client import CLUSTER, POD
from orch.components.runpod.plan import HIDDEN
from orch.components.runpod.resources import arguments, bootstrap, docker_arguments
from orch.rehearsal.account import SimulationError
from orch.rehearsal.machines import Endpoint
from orch.rehearsal.nodes import pods
from orch.rehearsal.nodes.containers import repair, stop
from orch.rehearsal.nodes.names import scope
from orch.rehearsal.runpod.account import RunpodCloud
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

SEED = "5e" * 32
CLIENT = new_key_pair()


@pytest.fixture
def backed(lab: Lab) -> Iterator[Lab]:
    """The account with containers behind its pods; all gone afterwards."""
    images.ensure("mpi", progress=print)
    lab.cloud.turn(nodes={"image": images.resolve("orch/mpi")})
    yield lab
    for pod in list(lab.cloud.endpoints()):
        stop(lab.cloud, pod)
    assert containers(lab) == []
    assert not docker("network", "ls", "-q", "--filter", f"name=orch-sim-{scope(lab.cloud)}")


def containers(lab: Lab) -> list[str]:
    name = f"name=^orch-sim-{scope(lab.cloud)}-"
    return docker("ps", "-a", "--filter", name, "--format", "{{.Names}}").split()


def command(image: str = "x/y") -> str:
    return bootstrap([CLIENT.public], host_key=private_host_key(SEED, "c"), image=image, hidden=HIDDEN)


def look(lab: Lab, pod: str) -> str:
    """The status of a pod, asked for past the service."""
    key = {"authorization": f"Bearer {lab.cloud.api_key}"}
    return str((lab.cloud.request("GET", f"/v2/pods/{pod}", "", None, key).document or {})["status"])


def running(lab: Lab, cluster: str) -> list[Endpoint]:
    """The endpoints of a cluster whose pods all run, by rank."""
    wait_until(
        lambda: all(pod["status"] == "RUNNING" for pod in lab.client.members(cluster) or ()), "its pods run"
    )
    ranks = {pod["id"]: pod["cluster"]["rank"] for pod in lab.client.members(cluster) or ()}
    known = lab.cloud.endpoints()
    return [known[pod] for pod in sorted(ranks, key=ranks.__getitem__)]


def test_a_task_runs_on_the_pods_of_a_cluster_and_they_go_with_it(backed: Lab, tmp_path: Path) -> None:
    cluster = backed.cluster(args=arguments(command()), env={"GIVEN": "at create"})
    assert containers(backed) == []
    ends = running(backed, cluster)
    assert {end.host_key for end in ends} == {public_host_key(SEED, "c")}
    assert sorted(containers(backed)) == sorted(end.container for end in ends)
    (tmp_path / "identity").write_text(CLIENT.private)
    (tmp_path / "identity").chmod(0o600)
    nodes = tuple(
        NodeState.model_validate(
            {
                **{"index": rank, "name": f"pod-{rank}", "address": end.address, "port": end.port},
                **{"user": end.user, "host_key": end.host_key, "internal_ip": end.internal_ip},
                **{"identity": str(tmp_path / "identity"), "runtime": "process"},
            }
        )
        for rank, end in enumerate(ends)
    )
    fleet = FleetState(
        name="pods", stack="pods", backend="runpod", placement="cluster", nodes=nodes, simulated=True
    )
    recorder, connector = Recorder(), SshConnector()
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    place = RunnerContext(tmp_path / ".orch", ledger, connector, recorder)
    show = 'echo "$NODE_RANK $WORLD_SIZE $GIVEN ${RUNPOD_POD_ID:+is a pod} ${RUNPOD_API_KEY-without key}"'
    task = Task.model_validate({"name": "job", "nodes": 2, "commands": [show], "shell": "sh"})
    row = lifecycle.drive(place, lifecycle.submit(place, Submission(task, fleet, image="x/y", base=tmp_path)))
    connector.close()
    ledger.close()
    assert row.status == "done", row.message
    told = sorted(event.text for event in recorder.events if isinstance(event, LogLine))
    assert told == [f"{rank} 2 at create is a pod without key" for rank in (0, 1)]

    # A rehearsal that is opened again keeps its pods, and makes those anew that somebody removed.
    docker("rm", "-f", ends[1].container)
    stop(backed.cloud, ends[1].instance)
    repair(backed.cloud)
    assert sorted(containers(backed)) == sorted(end.container for end in ends)
    assert backed.cloud.endpoints()[ends[0].instance] == ends[0]
    # One that RunPod takes away goes at once, the others with their cluster.
    backed.cloud.lose_pod(ends[1].instance)
    assert containers(backed) == [ends[0].container]
    backed.client.delete(CLUSTER, cluster)
    assert containers(backed) == []
    assert backed.cloud.endpoints() == {}


def test_a_command_that_repairs_leaves_what_another_one_is_starting(
    backed: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, made, create = threading.Event(), list[str](), pods.create

    def slow(name: str, *more: Any, **options: Any) -> pods.Reached:
        made.append(name)
        begun.set()
        return create(name, *more, **options)

    monkeypatch.setattr(pods, "create", slow)
    pod = backed.pod(args=arguments(command()))
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(wait_until, lambda: look(backed, pod) == "RUNNING", "it runs")
        assert begun.wait(60)
        repair(RunpodCloud(backed.cloud.path))
        starting.result()
    assert made == containers(backed) == [backed.cloud.endpoints()[pod].container]


def test_a_pod_of_another_entrypoint_is_reached_and_one_that_ends_is_told(backed: Lab) -> None:
    pod = backed.pod(args=docker_arguments(command()))
    wait_until(lambda: look(backed, pod) == "RUNNING", "it runs")
    assert pod in backed.cloud.endpoints()
    backed.client.delete(POD, pod)
    assert containers(backed) == []
    ends = backed.pod(args="sh -c 'echo nothing to do'")
    assert (look(backed, ends), look(backed, ends)) == ("PROVISIONING", "STARTING")
    with pytest.raises(SimulationError, match="nobody can log in") as caught:
        look(backed, ends)
    assert caught.value.detail == "nothing to do"
    assert containers(backed) == []
    assert backed.cloud.instances()[ends]["status"] == "EXITED"
