"""A backend of another package, from the first plan to the last node, and a rehearsal beside it."""

from __future__ import annotations

from pathlib import Path

from support import Folder

RACK = {"PYTHONPATH": str(Path(__file__).parent.parent / "backends" / "rack")}
FLEET = "type: fleet\nname: lab\nnodes: 2\nbackends: [rack]\nplacement: cluster\nresources: {memory: 1GB}\n"
TASK = "type: task\nnodes: 2\nimage: orch/mpi\ncommands: ['echo rank $ORCH_NODE_RANK of $ORCH_NODES_NUM']\n"


def test_its_fleet_comes_up_runs_a_job_and_goes(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: tests\nbackends: [{type: rack}]\n")
    folder.write("fleet.yml", FLEET)
    folder.write("task.yml", TASK)
    said = folder.orch("preview", "fleet.yml", "--exit-code", env=RACK)
    assert said.code == 10, said.err
    assert "it goes to a shelf in the cellar" in said.out
    said = folder.orch("up", "fleet.yml", "--yes", env=RACK)
    try:
        assert said.code == 0, said.err
        said = folder.orch("fleet", "show", "lab", "--json", env=RACK)
        assert said.json["fleets"][0]["backend"] == "rack"
        said = folder.orch("up", "fleet.yml", "--yes", env=RACK)
        assert "no changes" in said.out, said.out
        assert folder.orch("drift", "lab", env=RACK).code == 0
        said = folder.orch("run", "task.yml", env=RACK)
        assert said.code == 0, said.err
        assert "rank 1 of 2" in said.out
    finally:
        said = folder.orch("down", "lab", "--yes", env=RACK)
    assert said.code == 0, said.err
    assert folder.orch("fleet", "--json", env=RACK).json["fleets"] == []
