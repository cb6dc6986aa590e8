"""What the backend `local` knows of nodes that do not answer: whether Docker runs their containers."""

from __future__ import annotations

from uuid import uuid4

from orch import images
from orch.components.local.backend import MARK
from orch.components.registry import backend
from orch.images.client import connect


def test_docker_tells_why_a_local_node_does_not_answer() -> None:
    images.ensure("mpi", progress=print)
    docker, mark = connect(), f"tests/lab/{uuid4().hex[:6]}"
    image = images.resolve("orch/mpi")
    running, ended = (
        docker.containers.create(image, "sleep 600", hostname=name, labels={MARK: mark}, entrypoint="")
        for name in ("lab-0", "lab-1")
    )
    try:
        running.start()
        known = backend("local").silent_nodes(mark, ["lab-0", "lab-1", "lab-2"])
        assert known == {
            "lab-1": "its container is not running (created)",
            "lab-2": "its container is gone",
        }
    finally:
        for container in (running, ended):
            container.remove(force=True)
