"""Real nodes for tests: containers with sshd and their own Docker, on a network of their own."""

from __future__ import annotations

import io
import secrets
import subprocess
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kit.nodes.containershell import inside
from kit.nodes.labmachine import docker
from kit.support import free_port

from orch import images
from orch.runner.ledger.run_folder import new_key_pair
from orch.spec.state import FleetState, NodeState


@dataclass
class Lab:
    """Makes node containers and removes them all at the end."""

    folder: Path
    tag: str = field(default_factory=lambda: f"orch-rt-{secrets.token_hex(3)}")
    made: int = 0

    def __post_init__(self) -> None:
        docker("network", "create", "--label", f"orch.test={self.tag}", self.tag)
        pair = new_key_pair()
        self.identity = self.folder / "identity"
        self.identity.write_text(pair.private)
        self.identity.chmod(0o600)
        self.public = pair.public

    def node(self, *options: str, image: str = "orch/node") -> NodeState:
        index, self.made = self.made, self.made + 1
        name, host, port = f"{self.tag}-{index}", new_key_pair(), free_port()
        docker(
            *(
                "create",
                "--name",
                name,
                "--hostname",
                name,
                "--network",
                self.tag,
                "--label",
                f"orch.test={self.tag}",
            ),
            *(
                "--cgroupns",
                "private",
                "--security-opt",
                "seccomp=unconfined",
                "--security-opt",
                "apparmor=unconfined",
            ),
            *(
                word
                for cap in ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "IPC_LOCK")
                for word in ("--cap-add", cap)
            ),
            *("--publish", f"127.0.0.1:{port}:22", *options, images.resolve(image)),
        )
        docker("cp", "-", f"{name}:/", data=_keys(host.private, self.public))
        docker("start", name)
        address = docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
        state = NodeState(
            index=index,
            name=name,
            address="127.0.0.1",
            port=port,
            user="root",
            identity=str(self.identity),
            host_key=host.public,
            internal_ip=address,
            cpus=2,
            memory_mib=2048,
        )
        wait_until(lambda: bool(inside(name, "docker version -f '{{.Server.Version}}'", check=False)))
        return state

    def fleet(self, *nodes: NodeState, grace_s: float = 60.0, image: str = "orch/mpi") -> FleetState:
        return FleetState(
            name="lab",
            stack="lab",
            backend="local",
            placement="cluster",
            nodes=nodes,
            unreachable_grace_s=grace_s,
            image=images.resolve(image),
        )

    def remove(self) -> None:
        ids = docker("ps", "-aq", "--filter", f"label=orch.test={self.tag}").split()
        with ThreadPoolExecutor() as pool:  # of several in one call Docker removes one after another
            list(pool.map(lambda each: docker("rm", "-f", "-v", each), ids))
        docker("network", "rm", self.tag, check=False)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def _keys(host_key: str, client_public: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        texts = {"etc/ssh/ssh_host_ed25519_key": host_key, "etc/orch/authorized_keys": client_public + "\n"}
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o600
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def load_image(node: NodeState, name: str) -> None:
    save = subprocess.Popen(["docker", "save", images.resolve(f"orch/{name}")], stdout=subprocess.PIPE)
    subprocess.run(["docker", "exec", "-i", node.name, "docker", "load", "-q"], stdin=save.stdout, check=True)
    assert save.wait() == 0
