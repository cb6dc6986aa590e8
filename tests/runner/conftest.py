"""Nodes, a transport and a ledger for the runner's tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.nodes.blocklab import end_all
from kit.nodes.hostlab import Room
from kit.nodes.labserver import Server
from kit.nodes.nodelab import Lab, load_image
from kit.nodes.podlab import RUNPOD, PodLab, pod_lab
from kit.nodes.stocked import stocked

from orch import images
from orch.runner.events import Recorder
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.runner.node_api.commands import Command
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.state import NodeState


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    images.ensure("node", progress=print)
    images.ensure("mpi", progress=print)
    lab = Lab(tmp_path_factory.mktemp("lab"))
    try:
        yield lab
    finally:
        lab.remove()


@pytest.fixture(scope="session")
def pair(lab: Lab) -> tuple[NodeState, NodeState]:
    """Two nodes that live as long as the tests, with the small MPI image on them."""
    image = stocked("mpi")
    return lab.node(image=image), lab.node(image=image)


@pytest.fixture(scope="session")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodLab]:
    with pod_lab(tmp_path_factory.mktemp("pods")) as pods:
        yield pods


@pytest.fixture(scope="session")
def two(pods: PodLab) -> tuple[NodeState, NodeState]:
    """Two pods that live as long as the tests, of the small MPI image; RunPod's environment is in the
    first."""
    return pods.pod("--cap-add=NET_ADMIN", image="orch/mpi", env=RUNPOD), pods.pod(image="orch/mpi")


@pytest.fixture(scope="session")
def transport() -> Iterator[SshConnector]:
    transport = SshConnector(connect_timeout_s=8.0, deadline_s=20.0)
    yield transport
    transport.close()


@pytest.fixture
def owner_per_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that drive a run are different owners of its lease, as processes are: one does not take it from
    another."""
    monkeypatch.setattr(lifecycle, "process_owner", lambda: f"thread {threading.get_ident()}")


@pytest.fixture
def dot(tmp_path: Path) -> Path:
    return tmp_path / ".orch"


@pytest.fixture
def ledger(dot: Path) -> Iterator[Ledger]:
    ledger = open_ledger(f"sqlite:///{dot / 'ledger.db'}")
    yield ledger
    ledger.close()


@pytest.fixture
def place(dot: Path, ledger: Ledger, transport: SshConnector) -> RunnerContext:
    """A project of its own for one test."""
    return RunnerContext(dot, ledger, transport, Recorder())


@pytest.fixture
def left_on(transport: SshConnector) -> Callable[[NodeState], str]:
    """What runs have left on a node: containers, stages, claims."""

    def look(node: NodeState) -> str:
        script = "docker ps -aq; cd /var/lib/orch && ls runs control claims | grep -v -e : -e '^$'; true"
        return transport.run(node, Command(script)).stdout.strip()

    return look


@pytest.fixture(scope="module")
def gpu1(room: Room) -> Iterator[Server]:
    """A server with eight H100, and the small MPI image on it. Servers are left as they were found."""
    server = room.servers[0]
    load_image(server.state().model_copy(update={"name": server.container}), "mpi")
    yield server
    for used in room.servers:
        used.run("rm -rf /var/lib/orch /srv/gate; docker image prune -af")


@pytest.fixture
def ended(place: RunnerContext) -> Iterator[None]:
    """What the test has started is over after it."""
    yield
    end_all(place)
