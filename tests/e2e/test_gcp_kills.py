"""GCP fleets whose `up` or `down` is killed at any place. The simulated account's own list is the judge."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import RehearsedGcp
from kit.support import until

INSERT = "compute.instances.insert"
NODES = ["lab-0", "lab-1", "lab-2"]
pytestmark = pytest.mark.timeout(600)  # three engines one after another, the first for the module
FLEX: dict[str, Any] = {"type": "gcp", "provisioning": "flex-start"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RehearsedGcp]:
    """Three nodes that are up, to be copied."""
    path = tmp_path_factory.mktemp("cluster")
    there: RehearsedGcp = RehearsedGcp.make(path)
    there.fleet(3)
    assert there.up().code == 0
    yield there
    shutil.rmtree(path)


def copied(cluster: RehearsedGcp, path: Path) -> RehearsedGcp:
    shutil.copytree(cluster.path, path / "copy")
    return RehearsedGcp(path / "copy")


def test_what_bears_the_stacks_marks_and_is_not_recorded_is_removed_after_a_kill(
    tmp_path: Path, cluster: RehearsedGcp
) -> None:
    """As after a state that was put back to an older one."""
    there = copied(cluster, tmp_path)
    node, doc = next(iter(there.cloud.instances().items()))
    zone = node.rpartition("/instances/")[0]
    template = next(iter(there.cloud.things("instance-template")))
    status, _ = there.cloud.request(
        "POST",
        f"{zone}/instances",
        {"sourceInstanceTemplate": template},
        {"name": "stray", "labels": doc["labels"]},
    )
    assert status == 200
    stray = f"{zone}/instances/stray"
    assert stray in there.cloud.instances()
    there.killed(there.calls() + 20, "up", "lab.yml")
    said = there.up()
    assert said.code == 0, said.err
    assert stray in said.err
    assert stray not in there.cloud.instances()
    assert there.names() == NODES


def test_a_killed_request_for_more_of_a_group_leaves_as_many_as_are_wanted(tmp_path: Path) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path)
    there.fleet(1, backend_options=[FLEX])
    assert there.up().code == 0
    ids = there.nodes()
    there.fleet(2, backend_options=[FLEX])
    asked = "compute.instanceGroupManagerResizeRequests.insert"
    there.killed_at({"action": asked, "nth": 2, "when": "after"}, "up", "lab.yml")
    assert len(there.nodes()) == 2
    said = there.up()
    assert said.code == 0, said.err
    assert len(there.nodes()) == 2
    assert ids.items() < there.nodes().items()
    assert there.unrecorded() == {}


def test_an_interrupt_ends_in_order_and_the_state_is_what_is_in_the_cloud(tmp_path: Path) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path, latency_s={INSERT: 6.0})
    there.fleet(3)
    process = there.start("up", "lab.yml", "--yes", "--rehearse")
    until(lambda: INSERT in {call.action for call in there.cloud.calls}, 120, "a node is being made")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "run the same command again to continue" in err
    assert there.unrecorded() == {}
    nodes = {each for each, kind in there.recorded().items() if "instanceFromTemplate" in kind}
    assert nodes == set(there.cloud.instances())
    assert all(call.done for call in there.cloud.calls)
    state = json.loads(there.checkpoint().read_text())["checkpoint"]["latest"]
    assert not state.get("pending_operations")

    there.cloud.turn(latency_s={})
    said = there.up()
    assert said.code == 0, said.err
    assert there.names() == NODES
    assert nodes <= set(there.nodes())


def test_an_interrupt_while_waiting_in_a_queue_keeps_the_place_in_it(tmp_path: Path) -> None:
    there: RehearsedGcp = RehearsedGcp.make(
        tmp_path, capacity={f"*@us-central1-{zone}": 0 for zone in "abcf"}
    )
    there.fleet(1, backend_options=[FLEX])
    process = there.start("up", "lab.yml", "--yes", "--rehearse")
    looked = "compute.instanceGroupManagerResizeRequests.get"
    until(
        lambda: (
            "google-cloud-compute" in {call.caller for call in there.cloud.calls if call.action == looked}
        ),
        120,
        "the queue is asked",
    )
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "its place in the queue is kept" in err
    (request,) = there.cloud.things("resize-request").values()
    assert request["state"] == "ACCEPTED"
    # With room by then, the next `up` takes the same place.
    there.cloud.turn(capacity={})
    said = there.up()
    assert said.code == 0, said.err
    assert len(there.nodes()) == 1
    (again,) = there.cloud.things("resize-request").values()
    assert again["id"] == request["id"]
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_a_disk_whose_making_was_killed_does_not_keep_its_volume_from_being_made(tmp_path: Path) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path)
    there.write("data.yml", "{type: volume, name: data, backend: gcp, region: us-central1, size: 10GB}")
    there.killed_at({"action": "compute.disks.insert", "when": "after"}, "up", "data.yml")
    (first,) = there.cloud.things("disk").values()
    said = there.orch("up", "data.yml", "--yes", "--rehearse")
    assert said.code == 0, said.err
    assert "removed what an earlier call had made and not recorded: data (projects/" in said.err
    (second,) = there.cloud.things("disk").values()
    assert second["id"] != first["id"]
