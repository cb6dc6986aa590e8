"""A 1-Click Cluster that is there: its nodes are taken in behind its head, as existing hosts are, and left.

The simulated account tells of the cluster; its machines are servers with an SSH server each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.hostlab import Client, HostLab
from kit.nodes.labmachine import left_behind

from orch.rehearsal.lambda_.account import LambdaCloud

B200 = "gpu_8x_b200_sxm6"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[HostLab]:
    keys = tmp_path / "keys"
    keys.mkdir()
    lab = HostLab(keys)
    try:
        yield lab
    finally:
        lab.remove()


@pytest.fixture
def project(tmp_path: Path) -> Client:
    (tmp_path / "home").mkdir()
    (tmp_path / "orch.yml").write_text("project: tests\n")
    return Client(tmp_path, tmp_path / "home")


FLEET = """\
type: fleet
name: big
backends: [lambda]
placement: cluster
backend_options:
- {{type: lambda, cluster: {cluster}, user: ops, identity_file: {key}}}
"""


def test_a_cluster_is_taken_in_behind_its_head_checked_and_only_forgotten(
    lab: HostLab, project: Client, tmp_path: Path
) -> None:
    outside, inside = lab.network(), lab.network(internal=True)
    head = lab.server("head", outside, inside, engine=False)
    nodes = [lab.server(name, inside, direct=False) for name in ("n1", "n2")]
    cloud = LambdaCloud.create(tmp_path / ".orch" / "rehearsal" / "lambda.db")
    addresses = [each.address(inside) for each in nodes]
    cloud.order_cluster("train", B200, head.address(outside), addresses)
    before = {server.name: server.snapshot() for server in nodes}

    wrong = project.write("wrong.yml", FLEET.format(cluster="trian", key=lab.key.path))
    said = project.orch("preview", wrong, "--rehearse")
    assert said.code == 3, said.err
    assert "wrong.yml:6:27: error ORCH230: the account has no 1-Click Cluster trian" in said.err
    assert "there are train" in said.err

    file = project.write("big.yml", FLEET.format(cluster="train", key=lab.key.path))
    said = project.orch("check", file, "--rehearse", "--accept-new-host-keys")
    assert "train-node-[001-002]" in said.out, said.out + said.err
    said = project.orch("up", file, "--rehearse", "--yes", "--json", "--accept-new-host-keys")
    assert said.code == 0, said.out + said.err
    shown = project.orch("fleet", "show", "big", "--rehearse", "--json").json["fleets"][0]
    assert [each["name"] for each in shown["nodes"]] == ["train-node-001", "train-node-002"]
    said = project.orch("exec", "big", "--rehearse", "--", "hostname")
    assert said.code == 0, said.err
    assert "n1" in said.out
    assert "n2" in said.out
    assert project.orch("preview", file, "--rehearse", "--exit-code").code == 0

    asked = {call.action for call in cloud.calls}
    said = project.orch("down", "big", "--rehearse", "--yes")
    assert said.code == 0, said.err
    assert {call.action for call in cloud.calls} == asked == {"listInstances"}
    assert len(cloud.instances()) == 3
    for server in nodes:
        assert left_behind(before[server.name], server.snapshot()) == {}, server.name
