"""A backend of another package, from the first plan to the last node, and a rehearsal beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.engine.forkserver import ForkServer, interpreter
from kit.support import ORCH, Folder, Said

RACK = {"PYTHONPATH": str(Path(__file__).parent.parent / "backends" / "rack")}
FLEET = "type: fleet\nname: lab\nnodes: 2\nbackends: [rack]\nplacement: cluster\nresources: {memory: 1GB}\n"
TASK = "type: task\nnodes: 2\nimage: orch/mpi\ncommands: ['echo rank $ORCH_NODE_RANK of $ORCH_NODES_NUM']\n"


@dataclass(frozen=True)
class Installed(Folder):
    """A project where the other package is installed beside orch."""

    server: ForkServer

    def orch(self, *words: str, env: dict[str, str] | None = None, timeout: float = 300) -> Said:
        environment = {**os.environ, **RACK, **(env or {})}
        return Said(*self.server.call([*ORCH, *words], self.path, environment, timeout))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Installed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", RACK["PYTHONPATH"])  # read where an interpreter starts
        server = ForkServer(interpreter=interpreter())
    yield Installed(tmp_path, server)
    server.close()


def test_its_fleet_comes_up_runs_a_job_and_goes(folder: Installed) -> None:
    folder.write("orch.yml", "project: tests\nbackends: [{type: rack}]\n")
    folder.write("fleet.yml", FLEET)
    folder.write("task.yml", TASK)
    said = folder.orch("preview", "fleet.yml", "--exit-code")
    assert said.code == 10, said.err
    assert "it goes to a shelf in the cellar" in said.out
    said = folder.orch("up", "fleet.yml", "--yes")
    try:
        assert said.code == 0, said.err
        said = folder.orch("fleet", "show", "lab", "--json")
        assert said.json["fleets"][0]["backend"] == "rack"
        said = folder.orch("up", "fleet.yml", "--yes")
        assert "no changes" in said.out, said.out
        assert folder.orch("drift", "lab").code == 0
        said = folder.orch("run", "task.yml")
        assert said.code == 0, said.err
        assert "rank 1 of 2" in said.out
    finally:
        said = folder.orch("down", "lab", "--yes")
    assert said.code == 0, said.err
    assert folder.orch("fleet", "--json").json["fleets"] == []
