"""A run that is tried again, in containers: what failed, and what was lost, goes on from its checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.nodes.nodelab import Lab, docker, wait_until

from orch import images
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.runs import lifecycle, retry
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import NodeState

Pair = tuple[NodeState, NodeState]


def test_a_failure_and_a_lost_container_are_tried_again_and_the_checkpoint_is_there(
    place: RunnerContext,
    lab: Lab,
    pair: Pair,
    *,
    left_on: Callable[[NodeState], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "DELAYS_S", (0.0,))
    task = Task.model_validate(
        {
            "name": "job",
            "nodes": 2,
            "commands": [
                "cat /checkpoint/state 2>/dev/null || true",
                "[ $ORCH_NODE_RANK = 0 ] || { [ $ORCH_ATTEMPT = 2 ] || sleep 900; exit 0; }",
                "echo attempt $ORCH_ATTEMPT on $ORCH_INSTANCE >> /checkpoint/state",
                "[ $ORCH_ATTEMPT != 0 ] || exit 3",
                "[ $ORCH_ATTEMPT = 2 ] || sleep 900",
            ],
            "volumes": ["/srv/retry:/checkpoint"],
            "stop_duration": 1,
            "retry": {"on_events": ["error", "interruption"], "duration": "1h"},
        }
    )
    row = lifecycle.submit(
        place, Submission(task, lab.fleet(*pair), image=images.resolve("orch/mpi"), base=tmp_path)
    )
    ended: list[RunRow] = []
    thread = threading.Thread(target=lambda: ended.append(lifecycle.drive(place, row)))
    thread.start()
    first = pair[0].name
    try:

        def goes_on() -> bool:
            present = place.ledger.by_id(row.id)
            return not present.active or (present.attempt, present.status) == (1, "running")

        wait_until(goes_on, 300)
        container = plan_of(place.ledger.by_id(row.id)).container(0)
        docker("exec", first, "docker", "rm", "-f", container)
        thread.join(300)
        state = docker("exec", first, "cat", "/srv/retry/state")
    finally:
        lifecycle.stop(place, place.ledger.by_id(row.id), abort=True)
        for node in pair:
            docker("exec", node.name, "rm", "-rf", "/srv/retry")
    assert [(each.status, each.attempt) for each in ended] == [("done", 2)]
    assert [each.events for each in ended[0].attempts] == [("error",), ("error", "interruption")]
    lines = [f"attempt {attempt} on {first}" for attempt in range(3)]
    assert state.split("\n")[:3] == lines
    assert isinstance(place.processor, Recorder)
    told = [each.text for each in place.processor.events if isinstance(each, LogLine) and each.rank == 0]
    # Each attempt shows what those before it wrote down.
    assert told == [lines[0], *lines[:2]]
    assert [left_on(node) for node in pair] == ["", ""]
