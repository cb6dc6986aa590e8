"""AWS fleets whose `up` or `down` is killed at any place. The simulated account's own list is the judge."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.clouds.rehearsals import Rehearsed, kill_points
from kit.support import until

NODES = [f"p5-{index}" for index in range(8)]
pytestmark = pytest.mark.timeout(600)  # three engines one after another, the first for the module


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsed]:
    """Eight nodes that are up, to be copied."""
    path = tmp_path_factory.mktemp("cluster")
    there = Rehearsed.make(path)
    there.fleet(8)
    assert there.up().code == 0
    yield there
    shutil.rmtree(path)


@pytest.mark.parametrize("call", kill_points(often=[50], soak=[30, 65]))
def test_a_preview_after_a_killed_up_changes_nothing_and_down_leaves_nothing(
    tmp_path: Path, call: int
) -> None:
    there = Rehearsed.make(tmp_path)
    there.fleet(8)
    there.killed(call, "up", "p5.yml")
    before = there.kinds()
    said = there.preview()
    assert said.code == 0, said.err
    assert said.json["summary"]["create"] > 8
    assert there.kinds() == before
    said = there.down()
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}


def test_up_after_a_killed_down_brings_the_fleet_back_where_it_was(
    tmp_path: Path, cluster: Rehearsed
) -> None:
    there = Rehearsed(tmp_path / "copy")
    shutil.copytree(cluster.path, there.path)
    zones = set(there.nodes().values())
    there.killed(there.calls() + 75, "down", "p5")
    assert there.up().code == 0
    assert there.names() == NODES
    assert set(there.nodes().values()) == zones
    assert there.unrecorded() == {}


def test_what_bears_the_stacks_tags_and_is_not_recorded_is_removed_after_a_kill(
    tmp_path: Path, cluster: Rehearsed
) -> None:
    """As after a state that was put back to an older one."""
    there = Rehearsed(tmp_path / "copy")
    shutil.copytree(cluster.path, there.path)
    node, doc = next(iter(there.cloud.instances().items()))
    more = {key: doc[key] for key in ("ImageId", "SubnetId")}
    made = there.cloud.call(
        "RunInstances",
        {
            **more,
            "InstanceType": "m7i.large",
            "MinCount": 1,
            "MaxCount": 1,
            "TagSpecifications": [{"ResourceType": "instance", "Tags": doc["Tags"]}],
        },
    )
    stray = made["Instances"][0]["InstanceId"]
    there.killed(there.calls() + 40, "up", "p5.yml")
    said = there.up()
    assert said.code == 0, said.err
    assert stray in said.err
    assert stray not in there.cloud.instances()
    assert node in there.cloud.instances()
    assert there.names() == NODES


def test_an_interrupt_ends_in_order_and_the_state_is_what_is_in_the_cloud(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path, latency_s={"RunInstances": 6.0})
    there.fleet(8)
    process = there.start("up", "p5.yml", "--yes", "--rehearse")
    launches = "RunInstances"
    until(lambda: launches in {call.action for call in there.cloud.calls}, 120, "a node is being made")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "run the same command again to continue" in err
    assert there.unrecorded() == {}
    known = {each for each, kind in there.recorded().items() if kind == "aws:ec2/instance:Instance"}
    assert known == set(there.cloud.instances())
    assert all(call.done for call in there.cloud.calls)
    state = json.loads(there.checkpoint().read_text())["checkpoint"]["latest"]
    assert not state.get("pending_operations")

    there.cloud.turn(latency_s={})
    ids = there.nodes()
    said = there.up()
    assert said.code == 0, said.err
    assert "broke the lock" not in said.err
    assert ids.items() <= there.nodes().items()
    assert Counter(there.names()) == Counter(NODES)


def test_a_volume_whose_making_was_killed_is_made_once_and_leaves_no_disk(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path)
    there.write("data.yml", "{type: volume, name: data, backend: aws, region: us-east-1, size: 8GB}")
    there.killed_at({"action": "CreateVolume", "when": "after"}, "up", "data.yml")
    (first,) = there.cloud.things("volume")
    said = there.orch("up", "data.yml", "--yes", "--rehearse")
    assert said.code == 0, said.err
    assert f"removed what an earlier call had made and not recorded: data ({first})" in said.err
    (second,) = there.cloud.things("volume")
    assert second != first
