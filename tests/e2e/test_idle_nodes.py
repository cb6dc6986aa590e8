"""Idle nodes of clouds end themselves, with nobody watching: local nodes stand for rehearsed instances."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.clouds.rehearsals import L4, stock_nodes
from kit.nodes.labmachine import docker
from kit.support import Folder, until

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.nebius.account import NebiusCloud

FLEET = """
type: fleet
name: train
nodes: 0..2
idle_duration: %s
backends: [%s]
instance_types: [%s]
network: {%s}
"""
TASK = "type: task\nname: once\nidle_duration: %s\ncommands: [echo rank $ORCH_NODE_RANK]\n"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("cloud", "machine", "times"),
    # On AWS it is the run that wants its nodes to end sooner, on the others the fleet.
    [
        (Cloud, ("g6.xlarge", "bastion: false"), ("1h", "0s")),
        (GcpCloud, (L4, "bastion: false"), ("0s", "1h")),
        (NebiusCloud, ("gpu-h100-sxm_1gpu-16vcpu-200gb", "ssh_cidrs: [198.51.100.0/24]"), ("0s", "1h")),
    ],
    ids=["aws", "gcp", "nebius"],
)
def test_a_node_that_a_run_made_ends_itself_after_it_and_no_plan_brings_it_back(
    tmp_path: Path, cloud: type[SimulatedAccount], machine: tuple[str, str], times: tuple[str, str]
) -> None:
    (kind, network), (of_fleet, of_run) = machine, times
    (tmp_path / "orch.yml").write_text(f"project: tests\nbackends: [{{type: {cloud.name}}}]\n")
    account = tmp_path / ".orch" / "rehearsal" / f"{cloud.name}.db"
    stock_nodes(tmp_path, "job")
    folder = Folder(tmp_path)
    folder.write("fleet.yml", FLEET % (of_fleet, cloud.name, kind, network))
    folder.write("once.yml", TASK % of_run)
    try:
        assert folder.orch("up", "fleet.yml", "--rehearse", "--yes", timeout=300).code == 0
        said = folder.orch("run", "once.yml", "--rehearse", "--yes", timeout=600)
        assert said.code == 0, said.err
        (endpoint,) = cloud(account).endpoints().values()
        told = ["ps", "-q", "--filter", f"name={endpoint.container}"]
        until(lambda: not docker(*told), 120, "the end of the node")

        said = folder.orch("preview", "fleet.yml", "--rehearse", "--exit-code", timeout=300)
        assert said.code == 0, said.out + said.err
        assert "train-0 ended itself" in said.out
        assert folder.orch("drift", "train", "--rehearse", timeout=300).code == 0
        (shown,) = folder.orch("fleet", "show", "train", "--rehearse", "--json").json["fleets"][0]["nodes"]
        assert (shown["name"], shown["status"]) == ("train-0", "terminated")
        # A pass takes away what is left of it: the stopped instance of GCP or Nebius, with its disk.
        said = folder.orch("reconcile", "--rehearse", timeout=300)
        assert (said.code, "what is left of train-0 is removed" in said.err) == (0, True), said.err
        assert not cloud(account).instances()
        # It cost until it was found gone at most.
        cost = folder.orch("cost", "--rehearse", "--json").json
        assert 0 < cost["total"]["uncertain"] < cost["total"]["cost"]
    finally:
        said = folder.orch("down", "train", "--rehearse", "--yes", timeout=300)
    assert said.code == 0, said.err
    assert cloud(account).everything() == {}
