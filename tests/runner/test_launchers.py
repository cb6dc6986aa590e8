"""Launchers whose programs are in no image of orch, or whose faults take minutes, on two real nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from kit.nodes.nodelab import Lab, docker, load_image, wait_until
from kit.nodes.stocked import stocked
from platformdirs import user_cache_path

from orch import images
from orch.images.build import build_once
from orch.runner.events import LogLine, Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import RunRow
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import NodeState

Pair = tuple[NodeState, NodeState]

MPICH = """\
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \\
 && apt-get install -y --no-install-recommends iproute2 mpich openssh-client openssh-server python3 \\
 && apt-get clean
"""

# Handles of MPICH's ABI: MPI_COMM_WORLD, MPI_INT, MPI_SUM. The barriers let UCX end what it has begun:
# without them MPI_Finalize of MPICH 4.0 hung in 3 of 17 trials.
SUM = """\
import ctypes, os, time
mpi = ctypes.CDLL('libmpich.so.12')
mpi.MPI_Init(None, None)
rank, total = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(0x44000000, ctypes.byref(rank))
own = ctypes.c_int(rank.value + 1)
mpi.MPI_Allreduce(ctypes.byref(own), ctypes.byref(total), 1, 0x4c000405, 0x58000003, 0x44000000)
words = [rank.value, os.environ['ORCH_NODE_RANK'], total.value, os.environ['LATE'], os.environ['RANK']]
os.write(1, (' '.join(map(str, words)) + '\\n').encode())
for _ in range(20):
    mpi.MPI_Barrier(0x44000000)
    time.sleep(0.05)
mpi.MPI_Finalize()
"""

# Goes on for ever with two processes, and for a few steps alone.
ELASTIC = """\
import datetime, os, time
import torch, torch.distributed as dist
dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=15))
world = dist.get_world_size()
step = 0
while world > 1 or step < 5:
    one = torch.ones(1)
    dist.all_reduce(one)
    if dist.get_rank() == 0 and step < 5:
        os.write(1, f'step {step} of a world of {world}: {int(one)}\\n'.encode())
    step += 1
    time.sleep(0.2)
"""


def lines(place: RunnerContext) -> list[str]:
    assert isinstance(place.processor, Recorder)
    return [event.text for event in place.processor.events if isinstance(event, LogLine)]


@pytest.fixture(scope="module")
def mpich(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Pair]]:
    """An image with MPICH, and two nodes that have it."""
    folder = tmp_path_factory.mktemp("mpich")
    (folder / "Dockerfile").write_text(MPICH)
    image = build_once("mpich", folder, cache=user_cache_path("orch") / "images", progress=print)
    for node in pair:
        load_image(node, image.removeprefix("orch/"))
    yield image, pair
    for node in pair:
        docker("exec", node.name, "docker", "rmi", image)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mpi", ["auto", "mpich"])
def test_mpirun_of_mpich_starts_processes_that_reach_each_other(
    place: RunnerContext, lab: Lab, mpich: tuple[str, Pair], tmp_path: Path, mpi: str
) -> None:
    (tmp_path / "sum.py").write_text(SUM)
    block = {"program": "python3", "args": "/tmp/sum.py", "nproc_per_node": 2, "mpi": mpi, "torch_env": True}
    task = Task.model_validate(
        {
            "name": "job",
            "nodes": 2,
            "files": ["sum.py:/tmp/sum.py"],
            "commands": ["export LATE=42"],
            "mpirun": {**block, "export": ["LATE"]},
            "stop_duration": 5,
        }
    )
    image, pair = mpich
    row = lifecycle.submit(place, Submission(task, lab.fleet(*pair), image=image, base=tmp_path))
    row = lifecycle.drive(place, row)
    assert row.status == "done", lines(place)
    assert sorted(lines(place)) == [f"{rank} {rank // 2} 10 42 {rank}" for rank in range(4)]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_elastic_torchrun_goes_on_without_a_node_that_was_killed(
    place: RunnerContext, lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(ELASTIC)
    nodes = [lab.node(image=stocked("job")) for _ in range(2)]
    task = Task.model_validate(
        {
            "name": "job",
            "nodes": 2,
            "files": ["train.py"],
            "env": {"OMP_NUM_THREADS": "1"},
            "torchrun": {
                "program": "train.py",
                "nproc_per_node": 1,
                "nnodes": "1..2",
                "max_restarts": 3,
                "rdzv": {"conf": {"last_call_timeout": 5}},
            },
            "stop_duration": 5,
        }
    )
    fleet = lab.fleet(*nodes, grace_s=10)
    row = lifecycle.submit(place, Submission(task, fleet, image=images.resolve("orch/job"), base=tmp_path))
    ended: list[RunRow] = []
    driver = Thread(target=lambda: ended.append(lifecycle.drive(place, row)))
    driver.start()
    try:
        wait_until(lambda: "step 4 of a world of 2: 2" in lines(place), 300)
        killed = time.monotonic()
        docker("kill", nodes[1].name)
        driver.join(400)
        print(f"ended {time.monotonic() - killed:.0f} s after the kill")
    finally:
        docker("rm", "-f", "-v", *(node.name for node in nodes))
        driver.join(60)
    assert [each.status for each in ended] == ["done"], lines(place)
    assert [(rank.status, rank.reason) for rank in ended[0].ranks] == [
        ("done", "done"),
        ("failed", "instance_unreachable"),
    ]
    assert lines(place)[-1] == "step 4 of a world of 1: 1"
    assert isinstance(place.processor, Recorder)
    notices = [event.text for event in place.processor.events if isinstance(event, Notice)]
    assert f"{nodes[1].name} left the run, which goes on with 1 of 2 nodes" in notices
