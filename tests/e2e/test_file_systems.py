"""A file system that is created with a rehearsed fleet: jobs on all of its nodes see the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.clouds.rehearsals import stock_nodes
from kit.support import Folder

from orch.rehearsal.aws.account import Cloud

FLEET = """\
type: fleet
name: share
backends: [aws]
regions: [us-east-1]
instance_types: [m7i.large]
placement: cluster
nodes: 2
mounts:
- {type: efs, path: /shared/data, create: true}
"""
TASK = """\
type: task
name: share-it
image: orch/mpi
nodes: 2
commands: ['%s']
"""


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("engine")
def test_jobs_on_all_nodes_see_the_same_files_until_the_fleet_goes(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    stock_nodes(tmp_path, "mpi")
    folder = Folder(tmp_path)
    folder.write("fleet.yml", FLEET)

    def run(command: str) -> list[str]:
        folder.write("task.yml", TASK % command)
        said = folder.orch("run", "task.yml", "--rehearse", timeout=280)
        assert said.code == 0, said.err
        return [line.rpartition("] ")[2] for line in said.out.splitlines()]

    try:
        said = folder.orch("up", "fleet.yml", "--rehearse", "--yes", timeout=400)
        assert said.code == 0, said.err
        run("echo $DSTACK_NODE_RANK > /shared/data/$DSTACK_NODE_RANK")
        # Lines of two ranks come as they are read.
        assert sorted(run("cat /shared/data/0 /shared/data/1")) == ["0", "0", "1", "1"]
    finally:
        said = folder.orch("down", "fleet.yml", "--rehearse", "--yes", timeout=300)
    assert said.code == 0, said.err
    assert "the file system at /shared/data (EFS fs-" in said.err
    assert "is deleted, and all data on it" in said.err
    assert Cloud(tmp_path / ".orch" / "rehearsal" / "aws.db").everything() == {}
