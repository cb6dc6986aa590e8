"""Runs on parts of the lab's servers, for tests."""

from __future__ import annotations

from pathlib import Path

from kit.nodes.labserver import Server

from orch import images
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import RunRow
from orch.runner.node_api.connector import Connector
from orch.runner.runs import lifecycle
from orch.runner.runs.driver import Driver
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import FleetState, Gpus, NodeState

H100 = Gpus(count=8, vendor="nvidia", name="H100", memory_mib=81920)


def node(server: Server, blocks: int, gpus: Gpus = H100, index: int = 0, **more: object) -> NodeState:
    """The server as it is registered: logged in by somebody with sudo who may not talk to Docker."""
    given = {"blocks": blocks, "gpus": gpus, "cpus": 2, "memory_mib": 4096, **more}
    return server.state(index, user="ops").model_copy(update=given)


def fleet(*nodes: NodeState, **more: object) -> FleetState:
    given = {"name": "rack", "stack": "rack", "backend": "ssh", "nodes": nodes, "placement": "cluster"}
    return FleetState.model_validate(given | more)


def person(folder: Path, transport: Connector) -> RunnerContext:
    """Somebody with a project and a ledger of their own."""
    dot = folder / ".orch"
    return RunnerContext(dot, open_ledger(f"sqlite:///{dot / 'ledger.db'}"), transport, Recorder())


def submit(place: RunnerContext, on: FleetState, **task: object) -> RunRow:
    given = {"name": "job", "stop_duration": 1, **task}
    image = images.resolve("orch/mpi")
    return lifecycle.submit(place, Submission(Task.model_validate(given), on, image=image, base=place.dot))


def run(place: RunnerContext, on: FleetState, **task: object) -> list[str]:
    """The lines a job printed; it must end well."""
    assert isinstance(place.processor, Recorder)
    place.processor.events.clear()
    row = lifecycle.drive(place, submit(place, on, **task))
    assert row.status == "done", row.message
    return [event.text for event in place.processor.events if isinstance(event, LogLine)]


def begin(place: RunnerContext, on: FleetState, name: str, **task: object) -> RunRow:
    """A run that is started and left to itself."""
    row = submit(place, on, name=name, **{"commands": ["sleep 300"], **task})
    lease = place.ledger.take(row.id, "a test")
    assert lease is not None
    Driver(place.context(row), row, lease, follow_logs=False).step()
    place.ledger.release(lease)
    return place.ledger.by_id(row.id)


def end_all(place: RunnerContext) -> None:
    for row in place.ledger.runs(active_only=True):
        lifecycle.stop(place, row, abort=True)


def left_on(server: Server) -> str:
    """What runs have left: containers, stages, claims."""
    return server.run(
        "docker ps -aq; cd /var/lib/orch && ls claims runs control | grep -v -e : -e '^$'; true"
    )
