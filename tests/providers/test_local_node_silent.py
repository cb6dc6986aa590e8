"""What the backend `local` knows of nodes that do not answer: whether Docker runs their containers."""

from __future__ import annotations

import secrets

from kit.nodes.labmachine import docker

from orch import images
from orch.components.local.backend import MARK
from orch.components.registry.backends import backend


def test_docker_tells_why_a_local_node_does_not_answer() -> None:
    image, mark = images.ensure("mpi", progress=print), f"tests/lab/{secrets.token_hex(3)}"
    names = [f"lab-{index}-{secrets.token_hex(3)}" for index in range(2)]
    try:
        for index, name in enumerate(names):
            words = ("--name", name, "--hostname", f"lab-{index}", "--label", f"{MARK}={mark}")
            docker("create", *words, "--entrypoint", "sleep", image, "600")
        docker("start", names[0])
        known = backend("local").silent_nodes(mark, ["lab-0", "lab-1", "lab-2"])
        assert known == {
            "lab-1": "its container is not running (created)",
            "lab-2": "its container is gone",
        }
    finally:
        docker("rm", "--force", *names, check=False)
