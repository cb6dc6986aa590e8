"""The A3 Mega example on one machine, with local nodes: a job tells first what it got of its fabric."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from kit.clouds.rehearsals import few_ranks, stock_nodes
from kit.support import ROOT, Folder

from orch.catalog.fabrics import fabric
from orch.rehearsal.gcp.account import GcpCloud

# The variables that the research on peers names for A3 Mega, from cluster-toolkit and dstack.
NAMED = {
    "NCCL_FASTRAK_CTRL_DEV",
    "NCCL_FASTRAK_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY",
    "LD_LIBRARY_PATH",
}


@pytest.mark.timeout(1500)
def test_a_job_on_a3_mega_first_prints_the_variables_mounts_and_devices_of_its_fabric(tmp_path: Path) -> None:
    known = fabric("tcpxo", "a3-megagpu-8g")
    assert known is not None
    assert set(known.env) >= NAMED
    (tmp_path / "orch.yml").write_text("project: tests\n")
    for name in ("gcp", "nccl"):
        shutil.copytree(ROOT / "examples" / name, tmp_path / name)
    # Two ranks a node: eight show no more, and share the cores there are.
    few_ranks(tmp_path / "nccl" / "gcp.yml")
    stock_nodes(tmp_path, "job")
    folder = Folder(tmp_path)
    try:
        said = folder.orch("up", "gcp/cluster.yml", "--rehearse", "--yes", timeout=600)
        assert said.code == 0, said.err
        cloud = GcpCloud(tmp_path / ".orch" / "rehearsal" / "gcp.db")
        devices = {each for one in cloud.endpoints().values() for each in one.placeholders}

        said = folder.orch("run", "nccl/gcp.yml", "--rehearse", "--json", timeout=900)
        assert said.code == 0, said.err
        assert said.json["status"] == "done"
        logs = folder.orch("logs", said.json["run"], "--rehearse").out
        told = dict(re.findall(r"variable (\w+)=(.*)$", logs, re.MULTILINE))
        assert {name: told.get(name) for name in known.env} == dict(known.env)
        shown = set(re.findall(r"device (/dev/\S+)$", logs, re.MULTILINE))
        assert shown == devices & {*known.devices, *known.optional_devices}
        assert shown
        assert "# transport: TCP from " in logs
        assert "# all_reduce of float32, 4 ranks on 2 nodes, gloo" in logs
        assert all(mount in said.err + logs for mount in known.mounts)
    finally:
        said = folder.orch("down", "mega", "--rehearse", "--yes", timeout=600)
    assert said.code == 0, said.err
