"""A job has a number of processes and threads of its own: one that forks without end ends itself alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kit.nodes.containershell import inside
from kit.nodes.nodelab import Lab
from kit.nodes.stocked import stocked

from orch import images
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import RunRow
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import NodeState


@pytest.fixture
def small(lab: Lab) -> NodeState:
    """A node on which a machine has 400 processes at most, and whose root may read the kernel's log."""
    node = lab.node("--cap-add=SYSLOG", image=stocked("mpi"))
    inside(node.name, "echo 400 > /srv/pid_max && mount --bind /srv/pid_max /proc/sys/kernel/pid_max")
    return node


def test_a_fork_bomb_ends_its_own_run_and_says_why(place: RunnerContext, lab: Lab, small: NodeState) -> None:
    fleet, seen = lab.fleet(small), []

    def submit(task: dict[str, Any]) -> RunRow:
        given = Task.model_validate(task)
        return lifecycle.submit(
            place, Submission(given, fleet, image=images.resolve("orch/mpi"), base=place.dot)
        )

    def look() -> None:
        """What root's tools answer meanwhile."""
        while not over.is_set():
            seen.append(inside(small.name, "docker ps -q | wc -l; cat /proc/loadavg", check=False))

    task = {"name": "bomb", "commands": ["sleep 1; while :; do sleep 300 & done"], "stop_duration": 3}
    row = submit(task)
    over = threading.Event()
    looking = threading.Thread(target=look)
    looking.start()
    try:
        row = lifecycle.drive(place, row)
    finally:
        over.set()
        looking.join()
    assert (row.status, row.ranks[0].reason) == ("failed", "container_exited_with_error")
    assert "after it reached its limit of 300 processes and threads" in str(row.message)
    assert seen
    assert all(seen)
    # A job of a whole node may have all of its share; one of no fault says nothing of it.
    task = {"name": "sound", "commands": ["for i in $(seq 200); do sleep 2 & done; wait; exit 3"]}
    row = submit(task)
    row = lifecycle.drive(place, row)
    assert "exited with code 3" in str(row.message)
    assert "limit" not in str(row.message)
