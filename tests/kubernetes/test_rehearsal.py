"""The example of a small cluster, rehearsed: on a control plane of its own, which is this machine's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit.support import ROOT, Folder

from orch.rehearsal.kubernetes.service import RehearsedCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("engine")]

HELLO = """\
type: task
name: hello
nodes: 2
commands: ['echo "rank $NODE_RANK of $DSTACK_NODES_NUM"']
"""


def test_the_example_comes_up_runs_in_pods_and_leaves_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: tests\nbackends: [{type: kubernetes, namespace: training}]\n")
    shutil.copy(ROOT / "examples" / "kubernetes" / "kind.yml", tmp_path)
    folder.write("hello.yml", HELLO)
    cluster = RehearsedCluster(tmp_path / ".orch" / "rehearsal" / "kubernetes")
    try:
        said = folder.orch("up", "kind.yml", "--rehearse", "--yes", timeout=300)
        assert said.code == 0, said.err
        said = folder.orch("preview", "kind.yml", "--rehearse", "--exit-code")
        assert (said.code, "no changes" in said.out) == (0, True), said.out + said.err
        said = folder.orch("run", "hello.yml", "--rehearse", timeout=300)
        assert said.code == 0, said.err
        assert {"rank 0 of 2", "rank 1 of 2"} <= {line.rpartition("] ")[2] for line in said.out.splitlines()}
        said = folder.orch("down", "kind", "--rehearse", "--yes", timeout=300)
        assert (said.code, "1 namespace" in said.out) == (0, True), said.out + said.err
        assert cluster.running()
    finally:
        cluster.stop()
