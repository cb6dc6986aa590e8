"""The AWS example as a user runs it on one machine: local nodes stand for the instances, gloo for EFA."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kit.clouds.rehearsals import few_ranks, stock_nodes
from kit.support import ROOT, Folder


def nodes_of(folder: Folder) -> list[str]:
    """Containers that stand for instances of this project's account."""
    from orch.rehearsal.aws.account import Cloud

    cloud = Cloud(folder.path / ".orch" / "rehearsal" / "aws.db")
    return sorted(endpoint.container for endpoint in cloud.endpoints().values())


def running() -> set[str]:
    listed = subprocess.run(
        ["docker", "ps", "-a", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    )
    return set(listed.stdout.split())


@pytest.mark.timeout(900)
def test_the_example_cluster_trains_in_a_rehearsal_and_leaves_no_container(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    shutil.copytree(ROOT / "examples" / "aws", tmp_path / "aws")
    # Two ranks a node: eight show no more, and share the cores there are.
    few_ranks(tmp_path / "aws" / "train.yml")
    stock_nodes(tmp_path, "job")
    folder = Folder(tmp_path)
    containers: list[str] = []
    try:
        said = folder.orch("up", "aws/p5-cluster.yml", "--rehearse", "--yes", timeout=300)
        assert said.code == 0, said.err
        containers = nodes_of(folder)
        assert len(containers) == 3  # two nodes and the bastion
        assert set(containers) <= running()

        shown = folder.orch("fleet", "show", "p5", "--rehearse", "--json").json["fleets"][0]
        assert [(node["name"], node["status"]) for node in shown["nodes"]] == [
            ("p5-0", "idle"),
            ("p5-1", "idle"),
        ]

        said = folder.orch("run", "aws/train.yml", "--rehearse", "--json", timeout=700)
        assert said.code == 0, said.err
        assert said.json["status"] == "done"
        assert [node["exit_code"] for node in said.json["nodes"]] == [0, 0]
        logs = folder.orch("logs", said.json["run"], "--rehearse")
        assert logs.code == 0, logs.err
        assert "gloo over" in logs.out
        assert "weights identical on all" in logs.out
    finally:
        said = folder.orch("down", "p5", "--rehearse", "--yes", timeout=300)
    assert said.code == 0, said.err
    assert not set(containers) & running()
