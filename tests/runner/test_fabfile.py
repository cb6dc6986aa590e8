"""`orch.runner.fabfile`: what a user of Fabric does with the nodes of a fleet, on real servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fabric.exceptions import GroupException
from kit.support import ROOT, Folder

from orch.runner.errors import HostKeyRefused, RunnerError
from orch.runner.fabfile import connections
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.ssh.pool import SshConnector
from orch.spec.access import Jump, OtherAccess
from orch.spec.state import NodeState

Pair = tuple[NodeState, NodeState]
QUIET: dict[str, Any] = {"hide": True, "in_stream": False}


@pytest.fixture
def connector() -> Iterator[SshConnector]:
    connector = SshConnector(connect_timeout_s=8.0, deadline_s=20.0)
    yield connector
    connector.close()


def behind(first: NodeState, second: NodeState) -> NodeState:
    """The second node, reached through the first one."""
    jump = Jump(
        address=first.ssh.address,
        port=first.ssh.port,
        user="root",
        identity=first.ssh.identity,
        host_key=first.ssh.host_key,
    )
    return second.reached(address=second.internal_ip, port=22, jump=(jump,))


def test_a_group_runs_and_copies_also_through_a_jump_host(
    pair: Pair, connector: SshConnector, tmp_path: Path
) -> None:
    first, second = pair[0], behind(*pair)
    with connections([first, second], connector) as group:
        told = group.run("hostname", **QUIET)
        assert {each.node.name: result.stdout.strip() for each, result in told.items()} == {
            node.name: node.name for node in pair
        }
        (tmp_path / "given").write_text("geheim\n")
        group.put(str(tmp_path / "given"), "/tmp/kept")
        group.sudo("chmod 600 /tmp/kept", **QUIET)
        group.get("/tmp/kept", local=f"{tmp_path}/got/{{host}}-{{port}}")
        assert [file.read_text() for file in (tmp_path / "got").iterdir()] == ["geheim\n"] * 2
        assert not any(result.ok for result in group.run("false", **QUIET, warn=True).values())
        with pytest.raises(GroupException):
            group.run("exit 3", **QUIET)
    assert not any(each.is_connected for each in group)
    assert group.run("true", **QUIET)  # opens them again


def test_a_host_key_that_is_not_the_pinned_one_is_refused(pair: Pair, connector: SshConnector) -> None:
    forged = pair[0].reached(host_key=new_key_pair().public)
    (connection,) = connections([forged], connector)
    with pytest.raises(HostKeyRefused):
        connection.run("true", **QUIET)


def test_a_pod_is_refused_by_name(pair: Pair, connector: SshConnector) -> None:
    pod = OtherAccess(kind="kubernetes")
    with pytest.raises(RunnerError, match=f"node {pair[0].name} is not reached over SSH"):
        connections([pair[0].model_copy(update={"access": pod})], connector)


def fab(folder: Folder, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "fabric", "-r", str(ROOT / "examples/fabric"), *words]
    return subprocess.run(program, cwd=folder.path, capture_output=True, text=True, check=False, timeout=120)


def test_the_example_is_a_fabfile_for_a_fleet_that_is_up(quickstart: Folder) -> None:
    quickstart.write("limits.conf", "* soft memlock unlimited\n")
    done = fab(quickstart, "kernels", "--name", "laptop")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["laptop-0", "laptop-1"]
    done = fab(quickstart, "install", "--name", "laptop", "--file", "limits.conf", "--to", "/etc/limits.test")
    assert done.returncode == 0, done.stderr
    said = quickstart.orch("exec", "laptop", "--", "stat -c '%U %a' /etc/limits.test; rm /etc/limits.test")
    assert "root 644" in said.out
    done = fab(quickstart, "kernels", "--name", "nosuch")
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "nosuch" in done.stderr
