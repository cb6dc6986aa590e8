"""What a job on a cloud's node gets of the instance metadata: nothing. A stand-in for the service answers on
the node's network, so that a job which got through would show."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import L4, Rehearsed, RehearsedGcp
from kit.nodes.nodelab import docker
from kit.nodes.stocked import stocked
from kit.support import until

from orch import images
from orch.rehearsal.nodes.names import scope
from orch.rehearsal.scenario import NodeScenario

ADDRESS = "169.254.169.254"
SECRET = "credentials-of-the-node"
SERVES = f"""
import socket
server = socket.create_server(("{ADDRESS}", 80))
while True:
    caller, _ = server.accept()
    caller.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n{SECRET}")
    caller.close()
"""
ASKS = f"""
import socket
try:
    with socket.create_connection(("{ADDRESS}", 80), timeout=10) as asked:
        print("the metadata says", asked.makefile().read())
except OSError as error:
    print("no answer:", error)
"""
# Packets that a program makes itself pass by the rules of a machine.
FORGES = """
import socket
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    print("may forge packets")
except PermissionError:
    print("may forge none")
"""
AWS: dict[str, Any] = {"instance_types": ["m7i.large"], "placement": "any", "network": {"bastion": False}}
GCP: dict[str, Any] = {"instance_types": [L4]}


def answers(node: str) -> bool:
    """Whether the metadata answers a program of the node itself."""
    return SECRET in docker("exec", node, "python3", "-c", ASKS)


@contextmanager
def metadata_service(node: str, network: str) -> Iterator[None]:
    """A machine of the node's network that answers at the metadata's address."""
    name = f"orch-metadata-{secrets.token_hex(3)}"
    serve = f"ip addr add {ADDRESS}/32 dev eth0 && exec python3 -c '{SERVES}'"
    options = ("--network", network, "--cap-add", "NET_ADMIN", "--entrypoint", "sh")
    docker("run", "-d", "--rm", "--name", name, *options, images.resolve("orch/node"), "-c", serve)
    try:
        # The node's own answers nobody, for nothing is announced.
        docker("exec", node, "ip", "addr", "del", f"{ADDRESS}/32", "dev", "lo")
        docker("exec", node, "ip", "route", "replace", ADDRESS, "dev", "eth0")
        until(lambda: answers(node), 120, "the stand-in answers the node itself")
        yield
    finally:
        docker("rm", "-f", name)


# Both have the same script: tests/components/test_init_steps.py.
@pytest.mark.timeout(600)  # the node's image may be made for it
@pytest.mark.parametrize(
    ("cloud", "more"),
    [
        pytest.param(Rehearsed, AWS, id="aws"),
        pytest.param(RehearsedGcp, GCP, id="gcp"),
    ],
)
def test_a_job_gets_no_answer_where_the_node_itself_gets_one(
    tmp_path: Path, cloud: type[Rehearsed], more: dict[str, Any]
) -> None:
    there = cloud.make(tmp_path, nodes=NodeScenario(image=stocked("mpi"), placeholders=False))
    there.fleet(1, name="lab", **more)
    there.write("ask.py", ASKS)
    there.write("forge.py", FORGES)
    task = "type: task\nname: ask\nimage: orch/mpi\nfiles: [ask.py, forge.py]\n"
    there.write("ask.yml", f"{task}commands: [python3 ask.py, python3 forge.py]\n")
    try:
        said = there.up("lab.yml")
        assert said.code == 0, said.err
        (endpoint,) = there.cloud.endpoints().values()
        with metadata_service(endpoint.container, f"orch-sim-{scope(there.cloud)}"):
            said = there.orch("run", "ask.yml", "--rehearse")
            assert said.code == 0, said.err
            assert "no answer" in said.out
            assert SECRET not in said.out
            assert "may forge none" in said.out

            # Somebody resets the packet filter, or the node has been off: the next job is kept away too.
            docker("exec", endpoint.container, "iptables", "-F")
            said = there.orch("run", "ask.yml", "--rehearse")
            assert (said.code, SECRET in said.out) == (0, False), said.out + said.err
            assert answers(endpoint.container)
    finally:
        said = there.down("lab")
    assert said.code == 0, said.err
