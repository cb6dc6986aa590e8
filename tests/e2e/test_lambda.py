"""Fleets on Lambda in the real engine, on a simulated account that orch's own client calls over the wire.

The simulated account's own list is the judge.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import RehearsedLambda, few_ranks, stock_nodes, tries
from kit.support import ROOT, Folder

from orch.rehearsal.lambda_.account import LambdaCloud
from orch.rehearsal.lambda_.api.resources import USUAL

pytestmark = pytest.mark.timeout(900)

EAST, WEST = "us-east-1", "us-west-1"
NODES = ["lab-0", "lab-1"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RehearsedLambda]:
    """Two nodes that are up, to be copied."""
    there: RehearsedLambda = RehearsedLambda.make(tmp_path_factory.mktemp("two"))
    there.fleet(2)
    said = there.up()
    assert said.code == 0, said.err
    yield there
    shutil.rmtree(there.path)


def copied(two: RehearsedLambda, path: Path) -> RehearsedLambda:
    shutil.copytree(two.path, path / "copy")
    return RehearsedLambda(path / "copy")


def test_what_broke_and_rules_that_somebody_changed_are_told_and_mended(
    tmp_path: Path, two: RehearsedLambda
) -> None:
    there = copied(two, tmp_path)
    mine: dict[str, Any] = {
        "protocol": "udp",
        "port_range": [9, 9],
        "source_network": "192.0.2.7/32",
        "description": "mine",
    }
    (own,) = [row for row in there.cloud.rules() if row not in USUAL]
    there.cloud.put_rules([*USUAL, {**own, "source_network": "0.0.0.0/0"}, mine])
    lost, kept = sorted(there.nodes(), key=lambda each: there.cloud.instances()[each]["hostname"])
    there.cloud.lose_host(lost)
    told = there.orch("drift", "lab", "--rehearse", "--json").json["drift"]
    assert {(each["name"], each["path"]) for each in told} == {
        ("lab-0", "status"),
        ("lab-ssh", "spec.rules[0].source_network"),
    }
    assert there.preview(None, "--exit-code").code == 10
    assert there.up().code == 0
    assert kept in there.nodes()
    assert lost not in there.nodes()
    assert there.names() == NODES
    assert there.cloud.rules() == [*USUAL, mine, own]
    assert there.unrecorded() == {"mine": "rules"}
    assert there.preview(None, "--exit-code").code == 0

    # What bears the stack's mark and is not recorded is listed, and removed; also of a stack nobody knows.
    cloud = there.cloud
    with cloud.store.transaction():
        _, doc = next(iter(cloud.store.each("ssh-key")))
        cloud.store.put("stray", "ssh-key", "", {**doc, "id": "stray"})
    assert "stray" in there.orch("gc", "--rehearse", "--json").out
    said = there.orch("gc", "--rehearse", "--yes")
    assert said.code == 0, said.err
    assert there.unrecorded() == {"mine": "rules"}
    assert there.down().code == 0
    assert there.cloud.rules() == [*USUAL, mine]
    # Nothing of the fleet is recorded any more: orch.yml says where to look.
    there.write("orch.yml", "project: tests\nbackends: [{type: lambda}]\n")
    with cloud.store.transaction():
        cloud.store.put("stray", "ssh-key", "", {**doc, "id": "stray"})
    assert "stray" in there.orch("gc", "--rehearse", "--json").out


def test_a_quota_stops_and_leaves_nothing(tmp_path: Path) -> None:
    there = RehearsedLambda.make(tmp_path, quotas={"instances": 1})
    there.fleet(2)
    said = there.up()
    assert said.code == 5, said.err
    assert "ORCH313" in said.err
    assert tries(said.err) == 1
    assert there.cloud.everything() == {}


def test_credentials_that_are_missing_or_wrong_are_told_with_what_to_set(tmp_path: Path) -> None:
    from orch.rehearsal.http_service import HttpService

    there = RehearsedLambda.make(tmp_path)
    file = there.fleet(2)
    nothing = {"LAMBDA_API_KEY": "", "HOME": str(tmp_path)}
    for verb in (("preview",), ("up", "--yes")):
        said = there.orch(verb[0], file, *verb[1:], env=nothing)
        assert said.code == 3, said.err
        assert "ORCH303" in said.err
        assert "hint: set `creds` of `lambda` in orch.yml, or LAMBDA_API_KEY" in said.err
    service = HttpService(there.cloud)
    try:
        wrong = {**nothing, "LAMBDA_API_KEY": "k", "LAMBDA_API_ENDPOINT": f"{service.url}/api/v1"}
        said = there.orch("preview", file, env=wrong)
    finally:
        service.stop()
    assert said.code == 3, said.err
    assert "Lambda does not accept the credentials" in said.err


def test_two_fleets_at_once_keep_each_others_rules_and_share_a_file_system(tmp_path: Path) -> None:
    there = RehearsedLambda.make(tmp_path)
    data = there.file_system("data", EAST)
    mounts = [{"type": "lambda-filesystem", "id": "data", "path": "/data/set"}]
    files = [there.fleet(1, name=name, mounts=mounts) for name in ("one", "two")]
    under_way = [there.start("up", file, "--yes", "--rehearse") for file in files]
    for each in under_way:
        _, err = each.communicate(600)
        assert each.returncode == 0, err
    assert there.kinds()["rules"] == 2
    assert there.names() == ["one-0", "two-0"]
    assert [doc["_mounts"] for doc in there.cloud.instances().values()] == [{"/data/set": data}] * 2
    under_way = [there.start("down", name, "--yes", "--rehearse") for name in ("one", "two")]
    for each in under_way:
        _, err = each.communicate(600)
        assert each.returncode == 0, err
    assert there.cloud.everything() == {data: "filesystem"}
    assert there.cloud.rules() == USUAL


def test_nodes_that_may_stand_alone_come_up_as_far_as_there_is_room_with_a_file_system_of_theirs(
    tmp_path: Path,
) -> None:
    single = "gpu_1x_a10"
    there = RehearsedLambda.make(tmp_path, capacity={f"{single}@{EAST}": 1})
    written: dict[str, Any] = {
        "regions": [EAST],
        "placement": "any",
        "gang": "best-effort",
        "instance_types": [single],
        "resources": {"gpu": "A10:1"},
    }
    mounts = [{"type": "lambda-filesystem", "create": True, "path": "/data/set"}]
    there.fleet({"min": 1, "target": 2, "max": 2}, **written, mounts=mounts)
    said = there.up()
    assert said.code == 0, said.err
    assert "1 of 2 nodes" in said.err
    assert "not made: lambda:capacity" in said.err
    assert len(there.nodes(single)) == 1
    there.cloud.turn(capacity={})
    assert there.up().code == 0
    assert there.names(single) == NODES
    assert there.unrecorded() == {}
    (disk,) = there.cloud.things("filesystem")
    assert [doc["_mounts"] for doc in there.cloud.instances().values()] == [{"/data/set": disk}] * 2
    there.fleet({"min": 1, "target": 2, "max": 2}, **written)
    said = there.preview()
    assert said.code == 3, said.err
    assert "ORCH275" in said.err
    said = there.down()
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}


@pytest.mark.timeout(900)
def test_torchrun_trains_over_two_rehearsed_instances_and_leaves_no_container(tmp_path: Path) -> None:
    """Local nodes stand for the instances."""
    shutil.copytree(ROOT / "examples" / "aws", tmp_path / "task")
    shutil.copytree(ROOT / "examples" / "lambda", tmp_path / "lambda")
    (tmp_path / "orch.yml").write_text("project: tests\n")
    task = tmp_path / "task" / "train.yml"
    task.write_text(task.read_text().replace("fleets: [p5]", "fleets: [h100]"))
    few_ranks(task)
    stock_nodes(tmp_path, "job")
    folder = Folder(tmp_path)
    try:
        said = folder.orch("up", "lambda/nodes.yml", "--rehearse", "--yes", timeout=300)
        assert said.code == 0, said.err
        nodes = folder.orch("fleet", "show", "h100", "--rehearse", "--json").json["fleets"][0]["nodes"]
        assert [(node["name"], node["status"]) for node in nodes] == [("h100-0", "idle"), ("h100-1", "idle")]
        said = folder.orch("run", "task/train.yml", "--rehearse", "--json", timeout=700)
        assert said.code == 0, said.err
        assert [node["exit_code"] for node in said.json["nodes"]] == [0, 0]
        logs = folder.orch("logs", said.json["run"], "--rehearse").out
        assert "weights identical on all" in logs
    finally:
        said = folder.orch("down", "h100", "--rehearse", "--yes", timeout=300)
    assert said.code == 0, said.err
    cloud = LambdaCloud(tmp_path / ".orch" / "rehearsal" / "lambda.db")
    assert cloud.endpoints() == {}
    assert cloud.everything() == {}
