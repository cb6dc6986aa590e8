"""Runs on a real API server: their pods are admitted, start together, do the job, and go with it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit.kubernetes.kubelab import Cluster

from orch.images import resolve
from orch.runner.connect import open_connector
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import RunRow
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.pods.admission import remove_leftover_pods
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus, PodQueue

pytestmark = pytest.mark.kubernetes


def sampled(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All cases for `make soak`; those of the suite."""
    return [each if each in chosen else pytest.param(each, marks=pytest.mark.soak) for each in cases]


class Lab:
    """A namespace with a queue of each kind, and a ledger."""

    def __init__(self, cluster: Cluster, space: str, folder: Path) -> None:
        self.cluster, self.space, self.folder = cluster, space, folder
        self.recorder = Recorder()
        self.connector = open_connector()
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        self.ledger = open_ledger(self.url)
        self.runner = RunnerContext(folder / ".orch", self.ledger, self.connector, self.recorder)

    def close(self) -> None:
        self.connector.close()
        self.ledger.close()

    def fleet(self, grace_s: float = 120.0, **queue: Any) -> FleetState:
        told = {
            "kubeconfig": str(self.cluster.cluster.kubeconfig),
            "namespace": self.space,
            "gang": "job",
            "pods": 8,
            "gpus": Gpus(count=8, vendor="nvidia", name="H100", memory_mib=81920),
            "requests": {"nvidia.com/gpu": "8"},
            "gpu_resource": "nvidia.com/gpu",
            "mark": "lab.train.x",
            **queue,
        }
        return FleetState(
            name="train",
            stack="train",
            backend="kubernetes",
            placement="cluster",
            simulated=True,
            unreachable_grace_s=grace_s,
            queue=PodQueue.model_validate(told),
        )

    def submit(self, fleet: FleetState | None = None, image: str = "", **task: Any) -> RunRow:
        from orch.runner.placement.slots import with_slots

        whole = with_slots(fleet or self.fleet())
        model = Task.model_validate({"name": "job", "shell": "sh", **task})
        return lifecycle.submit(
            self.runner, Submission(model, whole, image=image or resolve("orch/job"), base=self.folder)
        )

    def run(self, fleet: FleetState | None = None, image: str = "", **task: Any) -> RunRow:
        return lifecycle.drive(self.runner, self.submit(fleet, image, **task))

    def lines(self) -> list[str]:
        return sorted(event.text for event in self.recorder.events if isinstance(event, LogLine))

    def gangs(self) -> list[str]:
        rows = self.cluster.api.items(f"/apis/batch/v1/namespaces/{self.space}/jobs")
        return [row["metadata"]["name"] for row in rows]

    def pods(self) -> list[dict[str, Any]]:
        return self.cluster.pods(self.space)


@pytest.fixture
def lab(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    place = Lab(cluster, cluster.namespace(f"run-{name}"), tmp_path)
    yield place
    place.close()


def test_two_pods_talk_and_go_with_their_run(lab: Lab) -> None:
    show = 'echo "$NODE_RANK of $DSTACK_NODES_NUM at $(hostname)"; getent hosts $(hostname) >/dev/null'
    row = lab.run(nodes=2, commands=[show])
    assert row.status == "done", row.message
    assert [line.rpartition("-")[0].split(" at ")[0] for line in lab.lines()] == ["0 of 2", "1 of 2"]
    lab.cluster.until(lambda: not lab.gangs() and not lab.pods())


def test_torchrun_over_four_pods_sums_over_all_ranks(lab: Lab) -> None:
    (lab.folder / "sum.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.tensor([float(dist.get_rank())])\n"
        "dist.all_reduce(x)\n"
        "print(f'sum {int(x.item())} of {dist.get_world_size()}\\n', end='', flush=True)\n"
    )
    row = lab.run(
        nodes=4,
        files=["sum.py"],
        torchrun={"program": "sum.py", "nproc_per_node": 2},
    )
    assert row.status == "done", row.message
    assert lab.lines().count("sum 28 of 8") == 8


def test_mpirun_over_two_pods(lab: Lab) -> None:
    row = lab.run(
        image=resolve("orch/mpi"),
        nodes=2,
        mpirun={
            "program": "sh",
            "args": ["-c", "echo rank $OMPI_COMM_WORLD_RANK on $(hostname)"],
            "nproc_per_node": 1,
        },
    )
    assert row.status == "done", row.message
    assert len({line.rpartition(" ")[2] for line in lab.lines() if line.startswith("rank ")}) == 2


def test_a_rank_that_fails_fails_the_run_with_its_code(lab: Lab) -> None:
    row = lab.run(nodes=2, commands=["[ $NODE_RANK = 0 ] || exit 7; sleep 60"])
    assert (row.status, row.ranks[1].exit_code) == ("failed", 7)
    lab.cluster.until(lambda: not lab.gangs())


def test_a_pod_that_is_deleted_interrupts_the_run_and_a_retry_goes_on(lab: Lab) -> None:
    commands = ["echo try $ORCH_ATTEMPT; [ $ORCH_ATTEMPT = 1 ] || sleep 300"]
    row = lab.submit(nodes=2, commands=commands, retry={"on_events": ["interruption"], "duration": "1h"})
    driving = threading.Thread(target=lifecycle.drive, args=(lab.runner, row))
    driving.start()
    lab.cluster.until(lambda: lab.ledger.by_id(row.id).status == "running")
    name = lab.pods()[1]["metadata"]["name"]
    lab.cluster.api.delete(f"/api/v1/namespaces/{lab.space}/pods/{name}", gracePeriodSeconds=0)
    driving.join(180)
    row = lab.ledger.by_id(row.id)
    assert (row.status, row.attempt) == ("done", 1), row.message
    assert "try 1" in lab.lines()
    lab.cluster.until(lambda: not lab.gangs())


def test_an_image_that_is_not_there_ends_the_run_with_its_name(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch.runner.kubernetes.gangs.look.WRONG_S", 2.0)
    row = lab.run(image="orch/no-such-image:1", nodes=2, commands=["true"])
    assert row.status == "failed"
    assert "orch/no-such-image:1" in (row.message or "")
    lab.cluster.until(lambda: not lab.gangs())


def test_a_run_that_is_stopped_while_it_waits_leaves_nothing(lab: Lab) -> None:
    first = lab.submit(nodes=8, commands=["sleep 300"], name="first")
    driving = threading.Thread(target=lifecycle.drive, args=(lab.runner, first))
    driving.start()
    lab.cluster.until(lambda: lab.ledger.by_id(first.id).status == "running")
    second = lab.submit(nodes=8, commands=["true"], name="second")
    waiting = threading.Thread(target=lifecycle.drive, args=(lab.runner, second))
    waiting.start()
    told = lab.cluster.until(
        lambda: (
            "Insufficient nvidia.com/gpu" in str(lab.ledger.by_id(second.id).message)
            and lab.ledger.by_id(second.id).message
        )
    )
    assert "wait" in told or "start" in told
    for each in (second, first):
        lab.ledger.set_desired(each.id, "stop")  # their drivers are here
    driving.join(60)
    waiting.join(60)
    assert [lab.ledger.by_id(each.id).status for each in (first, second)] == ["terminated", "terminated"]
    lab.cluster.until(lambda: not lab.gangs())


def test_a_node_that_is_lost_interrupts_the_run_on_it(lab: Lab) -> None:
    row = lab.submit(lab.fleet(grace_s=10), nodes=2, commands=["sleep 300"])
    with ThreadPoolExecutor(1) as pool:
        driving = pool.submit(lifecycle.drive, lab.runner, row)
        lab.cluster.until(lambda: lab.ledger.by_id(row.id).status == "running")
        node = lab.pods()[1]["spec"]["nodeName"]
        lab.cluster.cluster.ask("lose", node=node)
        try:
            row = driving.result(timeout=180)
        finally:
            lab.cluster.cluster.ask("find_again", node=node)
    assert row.status == "failed"
    assert row.ranks[1].reason in ("instance_unreachable", "interrupted_by_no_capacity"), row.message
    lab.cluster.until(lambda: not lab.gangs() and not lab.pods())


def test_an_evicted_pod_says_why_its_run_ended(lab: Lab) -> None:
    row = lab.submit(nodes=2, commands=["sleep 300"])
    with ThreadPoolExecutor(1) as pool:
        driving = pool.submit(lifecycle.drive, lab.runner, row)
        lab.cluster.until(lambda: lab.ledger.by_id(row.id).status == "running")
        pod = lab.pods()[1]["metadata"]["name"]
        message = "The node was low on resource: memory."
        lab.cluster.cluster.ask("evict", namespace=lab.space, pod=pod, message=message)
        row = driving.result(timeout=120)
    assert (row.status, row.ranks[1].reason) == ("failed", "interrupted_by_no_capacity")
    assert "its node evicted it" in (row.message or "")
    assert "The node was low on resource: memory" in (row.message or "")


@pytest.mark.parametrize("moment", sampled(range(10), 1, 6))
def test_a_killed_driver_is_followed_by_another_one_and_nothing_runs_twice(lab: Lab, moment: int) -> None:
    row = lab.submit(nodes=2, commands=["echo once; sleep 2"])
    words = [str(lab.folder / ".orch"), lab.url, "job"]
    first = subprocess.Popen([sys.executable, str(Path(__file__).with_name("drive_pods.py")), *words])
    try:
        first.wait(0.8 + moment * 0.9)
    except subprocess.TimeoutExpired:
        first.kill()
        first.wait()
    row = lifecycle.drive(lab.runner, lab.ledger.by_id(row.id))
    assert row.status == "done", row.message
    folder = lab.runner.context(row).folder
    texts = [folder.log(rank).read_text().splitlines() for rank in (0, 1)]
    assert [[line.partition(" ")[2] for line in lines] for lines in texts] == [["once"], ["once"]]
    lab.cluster.until(lambda: not lab.gangs())


@pytest.mark.parametrize("moment", sampled(range(3), 1))
def test_a_stop_that_is_killed_leaves_nothing_after_reconciling(lab: Lab, moment: int) -> None:
    row = lab.submit(nodes=2, commands=["sleep 300"])
    words = [str(lab.folder / ".orch"), lab.url, "job"]
    first = subprocess.Popen([sys.executable, str(Path(__file__).with_name("drive_pods.py")), *words])
    lab.cluster.until(lambda: lab.ledger.by_id(row.id).status == "running")
    lab.ledger.set_desired(row.id, "stop")
    try:
        first.wait(0.5 + moment)
    except subprocess.TimeoutExpired:
        first.kill()
        first.wait()

    def reconciled() -> bool:
        lifecycle.reconcile_once(lab.runner)
        return not lab.ledger.by_id(row.id).active

    lab.cluster.until(reconciled)
    assert lab.ledger.by_id(row.id).status == "terminated"
    remove_leftover_pods(lab.ledger, lab.fleet())
    lab.cluster.until(lambda: not lab.gangs() and not lab.pods())


@pytest.mark.parametrize("form", sampled(["kueue", "podgroup", "job"], "kueue"))
def test_of_two_runs_that_do_not_fit_together_one_begins_and_the_other_waits(lab: Lab, form: str) -> None:
    queue: dict[str, Any] = {"gang": form, "start_limit_s": 5}
    if form == "kueue":
        queue["local_queue"] = add_queue(lab.cluster, lab.space)
    fleet, held_s = lab.fleet(**queue), 5
    rows = [lab.submit(fleet, nodes=6, commands=[f"sleep {held_s}"], name=f"six-{each}") for each in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda row: lifecycle.drive(lab.runner, row), rows))
    assert [row.status for row in ended] == ["done", "done"], [row.message for row in ended]
    began = sorted(row.started_at or 0.0 for row in ended)
    assert began[1] - began[0] >= held_s
    lab.cluster.until(lambda: not lab.gangs())


def add_queue(cluster: Cluster, space: str) -> str:
    """A queue of Kueue with 64 GPUs in a namespace."""
    root = "/apis/kueue.x-k8s.io/v1beta2"
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": {"name": space}}
    cluster.api.create(f"{root}/resourceflavors", {**head, "kind": "ResourceFlavor", "spec": {}})
    rows = [{"name": "nvidia.com/gpu", "nominalQuota": 64}]
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": space, "resources": rows}]}
    spec: dict[str, Any] = {"namespaceSelector": {}, "resourceGroups": [group]}
    cluster.api.create(f"{root}/clusterqueues", {**head, "kind": "ClusterQueue", "spec": spec})
    spec = {"clusterQueue": space}
    cluster.api.create(f"{root}/namespaces/{space}/localqueues", {**head, "kind": "LocalQueue", "spec": spec})
    return space
