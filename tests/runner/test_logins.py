"""Logins between the ranks of a run on two real nodes: `ssh` and an `mpirun` typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.nodes.nodelab import Lab, docker

from orch import images
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import RunRow
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import NodeState

Pair = tuple[NodeState, NodeState]
Run = Callable[..., RunRow]


@pytest.fixture
def run(place: RunnerContext, lab: Lab, pair: Pair, tmp_path: Path) -> Run:
    """Submit a task and see it to its end."""

    def run(image: str = "orch/mpi", **task: object) -> RunRow:
        given = Task.model_validate({"name": "job", "nodes": 2, "stop_duration": 5, **task})
        row = lifecycle.submit(
            place, Submission(given, lab.fleet(*pair), image=images.resolve(image), base=tmp_path)
        )
        return lifecycle.drive(place, row)

    return run


@pytest.fixture
def altered(pair: Pair) -> Iterator[Callable[[str], str]]:
    """An image on both nodes: the small MPI one after a command."""
    tag = "orch-test/altered:1"

    def alter(command: str) -> str:
        for node in pair:
            words = ("docker", "run", "--name", "altering", "--network", "none", "--entrypoint", "sh")
            docker("exec", node.name, *words, images.resolve("orch/mpi"), "-ec", command)
            docker("exec", node.name, "docker", "commit", "--change", "ENTRYPOINT []", "altering", tag)
            docker("exec", node.name, "docker", "rm", "altering")
        return tag

    yield alter
    for node in pair:
        docker("exec", node.name, "docker", "rmi", tag, check=False)


def lines(place: RunnerContext, rank: int) -> list[str]:
    assert isinstance(place.processor, Recorder)
    told = [event for event in place.processor.events if isinstance(event, LogLine)]
    return [line.text for line in told if line.rank == rank]


# Each rank asks each rank, by all it is called. They wait for each other: the server of a job ends with it.
EACH_TO_EACH = """\
for host in $NAMES; do echo "$host $(ssh $host 'echo $ORCH_NODE_RANK $COLOUR $(id -un) $PWD')"; done
# Who is told last may be gone before the session is.
for host in $ADDRESSES; do ssh $host "echo x >> /tmp/done" 2>/dev/null || :; done
until [ "$(wc -l < /tmp/done)" = 2 ]; do sleep 0.2; done
"""


@pytest.mark.parametrize("user", ["root", "dev"])
def test_every_rank_logs_in_to_every_rank_by_address_and_by_name(
    run: Run, place: RunnerContext, pair: Pair, user: str, altered: Callable[[str], str]
) -> None:
    image = "orch/mpi" if user == "root" else altered("useradd --create-home --shell /bin/sh dev")
    addresses = [node.internal_ip or "" for node in pair]
    names = [*addresses, *(node.name for node in pair), "job-0", "job-1"]
    row = run(
        image=image,
        user=user,
        working_dir="/tmp",
        env={"COLOUR": "it's blue", "NAMES": " ".join(names), "ADDRESSES": " ".join(addresses)},
        commands=[EACH_TO_EACH],
    )
    expected = [f"{name} {index % 2} it's blue {user} /tmp" for index, name in enumerate(names)]
    assert lines(place, 0) == lines(place, 1) == expected
    assert row.status == "done", row.message


def test_mpirun_typed_by_hand_starts_processes_on_both_nodes(
    run: Run, place: RunnerContext, pair: Pair, left_on: Callable[[NodeState], str]
) -> None:
    """The commands of the guide's test of NCCL, for nodes without accelerators."""
    command = """\
if [ $DSTACK_NODE_RANK -eq 0 ]; then
  mpirun \\
    --allow-run-as-root \\
    --hostfile $DSTACK_MPI_HOSTFILE \\
    -n 2 \\
    -N 1 \\
    --bind-to none \\
    sh -c 'echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname) $ORCH_NODE_RANK'
else
  sleep infinity
fi
"""
    row = run(startup_order="workers-first", stop_criteria="master-done", commands=[command])
    assert sorted(lines(place, 0)) == [f"{rank} of 2 on {node.name} {rank}" for rank, node in enumerate(pair)]
    assert row.status == "done", row.message
    assert [left_on(node) for node in pair] == ["", ""]


def test_an_image_without_sshd_runs_and_says_what_is_missing_where_it_is_used(
    run: Run, place: RunnerContext, altered: Callable[[str], str]
) -> None:
    missing = "orch: this image has no sshd: install openssh-server in it"
    image = altered("rm /usr/sbin/sshd")
    row = run(image=image, commands=["echo here", "ssh job-1 true 2>&1 || echo $?"])
    assert row.status == "done"
    assert (lines(place, 1)[0], lines(place, 1)[-1]) == ("here", "255")
    assert missing in lines(place, 1)
    row = run(image=image, mpirun="hostname", name="other")
    # The first rank that ends stops the other.
    assert row.status == "failed"
    assert 127 in [rank.exit_code for rank in row.ranks]
    assert missing in (*lines(place, 0)[-1:], *lines(place, 1)[-1:])
