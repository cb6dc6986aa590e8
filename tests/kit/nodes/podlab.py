"""Pods for tests: containers of a job's image whose first process is what a cloud's pods begin with."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kit.nodes.labmachine import docker, wait_until
from kit.nodes.nodelab import Lab
from kit.support import free_port

from orch import images
from orch.components.cloud.machines.host_keys import private_host_key, public_host_key
from orch.components.runpod.plan import HIDDEN
from orch.components.runpod.resources import arguments, bootstrap
from orch.spec.state import NodeState

SEED = "5e" * 32
"""The seed of the host key that all pods of a lab share, as those of a cluster do."""

RUNPOD = {
    "WORLD_SIZE": "16",
    "NODE_RANK": "7",
    "MASTER_ADDR": "10.65.0.2",
    "MASTER_PORT": "29400",
    "RUNPOD_POD_ID": "x1",
    "RUNPOD_API_KEY": "rpa_nobody-may-read-this",
    "QUOTED": 'it\'s\n"two" lines of $HOME',
    "N": "5",
}
"""Environment of a pod's first process, some of it with names that scripts of a node use."""


class PodLab(Lab):
    """Makes pods in place of nodes."""

    def start(self, *options: str, image: str, command: str, port: int) -> str:
        """A container that runs `command`, the string that a cloud is given; its name."""
        name, self.made = f"{self.tag}-{self.made}", self.made + 1
        docker(
            *("run", "--detach", "--name", name, "--hostname", name, "--network", self.tag),
            *("--label", f"orch.test={self.tag}", "--publish", f"127.0.0.1:{port}:22", *options),
            *(image, *shlex.split(command)),
        )
        return name

    def pod(self, *options: str, image: str, env: Mapping[str, str] | None = None) -> NodeState:
        """A node whose SSH server greets."""
        image = images.resolve(image)
        text = bootstrap([self.public], host_key=private_host_key(SEED, self.tag), image=image, hidden=HIDDEN)
        port, index = free_port(), self.made
        given = [word for key, value in (env or {}).items() for word in ("--env", f"{key}={value}")]
        name = self.start(*options, *given, image=images.resolve(image), command=arguments(text), port=port)
        (address,) = (
            network["IPAddress"]
            for network in json.loads(
                docker("inspect", "-f", "{{json .NetworkSettings.Networks}}", name)
            ).values()
        )
        wait_until(lambda: greets(port), f"the SSH server of {name} greets")
        return NodeState.model_validate(
            {
                "index": index,
                "name": name,
                "address": "127.0.0.1",
                "port": port,
                "user": "root",
                "identity": str(self.identity),
                "host_key": public_host_key(SEED, self.tag),
                "internal_ip": address,
                "runtime": "process",
                "cpus": 2,
                "memory_mib": 2048,
            }
        )


@contextmanager
def pod_lab(folder: Path) -> Iterator[PodLab]:
    """A lab, and the image that its pods have; all of it is removed in the end."""
    images.ensure("mpi", progress=print)
    lab = PodLab(folder)
    try:
        yield lab
    finally:
        lab.remove()


def greets(port: int) -> bool:
    """Whether an SSH server answers at a port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
