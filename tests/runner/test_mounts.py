"""Shared file systems of a fleet on a real node: mounted before jobs start, in every container, unmounted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.nodelab import Lab

from orch import images
from orch.runner.errors import NodeUnfit
from orch.runner.events import LogLine, Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import RunRow
from orch.runner.node_api.commands import Command, as_root
from orch.runner.preparation.init_steps import prepare, steps
from orch.runner.preparation.mounts import fleet_mounts, unmount
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.models import Fleet, Task
from orch.spec.state import NodeState

STACK = "0123456789ab"
SHARED = {"type": "host", "source": "/srv/orch data", "path": "/shared"}


class Node:
    """A node, and what an `up` and a run do with it."""

    def __init__(self, lab: Lab, node: NodeState, place: RunnerContext, transport: SshConnector) -> None:
        self.lab, self.state, self.place, self.transport = lab, node, place, transport
        self.mounts: Any = ()

    def says(self, script: str) -> str:
        done = self.transport.run(self.state, Command(as_root(script)))
        return (done.stdout + done.stderr).strip()

    def up(self, *mounts: dict[str, Any], new: bool = False) -> str:
        """Sends the fleet's steps. What they said where one failed."""
        fleet = Fleet.model_validate({"type": "fleet", "name": "lab", "nodes": 1, "mounts": list(mounts)})
        self.mounts = fleet_mounts(fleet.mounts)
        done = self.transport.run(self.state, prepare(STACK, steps(fleet, {}), new=new))
        return "" if done.ok else done.stdout.strip()

    def run(self, base: Path, command: str, **task: Any) -> RunRow:
        fleet = self.lab.fleet(self.state).model_copy(update={"mounts": self.mounts})
        wanted = Task.model_validate({"name": "job", "nodes": 1, "commands": [command], **task})
        row = lifecycle.submit(
            self.place, Submission(wanted, fleet, image=images.resolve("orch/mpi"), base=base)
        )
        return lifecycle.drive(self.place, row)

    def told(self, kind: type[LogLine] | type[Notice]) -> list[str]:
        assert isinstance(self.place.processor, Recorder)
        return [event.text for event in self.place.processor.events if isinstance(event, kind)]


@pytest.fixture
def node(
    lab: Lab, pair: tuple[NodeState, NodeState], place: RunnerContext, transport: SshConnector
) -> Iterator[Node]:
    node = Node(lab, pair[0], place, transport)
    node.says("mkdir -p '/srv/orch data'; echo from the server > '/srv/orch data/hello'")
    yield node
    node.says(f"{unmount(STACK)}; rm -rf /srv/orch* /var/lib/orch/init /other")


def test_a_file_system_is_there_in_jobs_and_goes_when_nobody_asks_for_it(node: Node, tmp_path: Path):
    before = node.says("cat /etc/fstab")
    assert node.up(SHARED, new=True) == ""
    line = r"/srv/orch\040data /shared none bind,_netdev,nofail,x-orch=orch-init-0123456789ab 0 0"
    assert node.says("cat /etc/fstab").splitlines() == [*before.splitlines(), line]
    assert node.run(tmp_path, "cat /shared/hello; echo back > /shared/result").status == "done"
    assert node.told(LogLine) == ["from the server"]
    # As after a reboot: what starts a job mounts it.
    node.says("umount /shared")
    assert node.run(tmp_path, "cat /shared/result").status == "done"
    assert node.told(LogLine)[1:] == ["back"]
    assert node.up({**SHARED, "path": "/other", "read_only": True}) == ""
    assert node.says("mountpoint -q /shared || echo gone; ls -d /shared") == (
        "gone\nls: cannot access '/shared': No such file or directory"
    )
    assert node.run(tmp_path, "touch /other/new 2>&1 | grep -o Read-only").status == "done"
    assert node.up() == ""
    assert node.says("cat /etc/fstab") == before
    assert node.says("cat '/srv/orch data/result'") == "back"


def test_a_file_system_that_cannot_be_mounted_keeps_the_node_out_or_is_left_out(node: Node, tmp_path: Path):
    missing = {**SHARED, "source": "/srv/orch-missing"}
    said = node.up(missing, new=True)
    assert said.startswith("init step mounts failed with 1")
    assert "/shared is not mounted from /srv/orch-missing" in said
    with pytest.raises(NodeUnfit, match="preparation failed"):
        node.run(tmp_path, "true")
    assert node.up({**missing, "optional": True}) == ""
    assert node.run(tmp_path, "[ -e /shared ] || echo without").status == "done"
    assert node.told(LogLine) == ["without"]
    assert any("/shared is left out: nothing is mounted there" in text for text in node.told(Notice))


def test_what_is_mounted_there_already_is_not_touched(node: Node):
    node.says("mkdir -p /other && mount --bind /srv /other")
    said = node.up({**SHARED, "path": "/other"}, new=True)
    assert "/other is a mount point of something else" in said
    assert node.says("mountpoint /other; umount /other") == "/other is a mountpoint"
    assert node.up({"type": "host", "source": "/srv", "path": "/srv"}) == ""
    assert "x-orch" not in node.says("cat /etc/fstab")
