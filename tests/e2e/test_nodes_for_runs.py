"""Runs make the nodes that they lack: local nodes, through the command line, as a user sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.support import Folder, containers, fleet_yaml

FLEET = "ondemand"
TASK = "type: task\nname: {name}\nnodes: {nodes}\ncommands: [echo rank $ORCH_NODE_RANK]\n"

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]


def test_a_run_shows_what_it_needs_and_makes_it_when_somebody_agrees(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    folder = Folder(tmp_path)
    folder.write("fleet.yml", fleet_yaml(FLEET, 1).replace("nodes: 1", "nodes: 0..2"))
    for name, nodes in (("one", 1), ("two", 2), ("three", 3)):
        folder.write(f"{name}.yml", TASK.format(name=name, nodes=nodes))
    try:
        assert folder.orch("up", "fleet.yml", "--yes").code == 0
        assert containers(folder, FLEET) == {}

        # Nobody to ask, nobody who agrees, and more than the fleet may have.
        said = folder.orch("run", "one.yml")
        assert said.code == 2
        assert "needs 1 more node" in said.err
        assert "write `orch run one.yml --yes`" in said.err
        assert folder.orch("run", "one.yml", "--no-provision").code == 3
        folder.write("orch.yml", "project: tests\nnodes_for_runs: never\n")
        assert folder.orch("run", "one.yml").code == 3
        assert folder.orch("run", "three.yml", "--yes").code == 3
        assert containers(folder, FLEET) == {}

        said = folder.orch("run", "one.yml", "--yes", timeout=600)
        assert said.code == 0, said.err
        assert f"{FLEET}-0: 1 node is made" in said.err
        assert "plan: 3 to create" in said.err
        folder.write("orch.yml", "project: tests\nnodes_for_runs: always\n")
        said = folder.orch("run", "two.yml", timeout=600)
        assert said.code == 0, said.err
        assert f"{FLEET}-1: 1 node is added" in said.err
        assert len(containers(folder, FLEET)) == 2

        # They are there for the next one, and for the next plan.
        said = folder.orch("run", "two.yml", "--name", "again", timeout=600)
        assert said.code == 0, said.err
        assert "more node" not in said.err
        assert folder.orch("preview", "fleet.yml", "--exit-code").code == 0
    finally:
        assert folder.orch("down", FLEET, "--yes").code == 0
    assert containers(folder, FLEET) == {}
