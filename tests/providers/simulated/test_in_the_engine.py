"""pulumi_aws in the real engine on the simulated account; the account's own list is the judge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.engine.simulated_stack import SimulatedStack, Wanted
from kit.support import at_work, until

from orch.stacks.engine import install as engines
from orch.stacks.pulumi.recovery import repair_files

pytestmark = [
    pytest.mark.skipif(engines.find() is None, reason="no Pulumi engine: `orch engine install`"),
    pytest.mark.usefixtures("forked_providers"),
]

TWO = Wanted()


@pytest.fixture
def stack(tmp_path: Path) -> SimulatedStack:
    return SimulatedStack.make(tmp_path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedStack]:
    """Two nodes that are up, for tests that leave them so."""
    made = SimulatedStack.make(tmp_path_factory.mktemp("cluster"))
    done = made.up(TWO)
    assert done.finished.code == 0, done.text
    yield made
    done = made.destroy()
    assert done.finished.code == 0, done.text
    assert made.cloud.everything() == {}
    shutil.rmtree(made.rehearsal.project.root)


def test_two_previews_are_the_same_and_make_nothing(stack: SimulatedStack) -> None:
    def seen() -> dict[str, str]:
        found = stack.preview(TWO).events
        news = [one["resourcePreEvent"]["metadata"] for one in found if "resourcePreEvent" in one]
        # The provider's own resource gets a random id from the engine, and every resource names it.
        return {one["urn"]: json.dumps(one["new"]["inputs"], sort_keys=True) for one in news}

    first = seen()
    assert first == seen()
    assert len(first) > 20
    assert stack.cloud.everything() == {}
    assert not stack.cloud.calls


def test_what_is_up_is_in_the_cloud_and_then_nothing_differs(cluster: SimulatedStack) -> None:
    docs = cluster.cloud.instances()
    assert len(docs) == 2
    assert {doc["Placement"]["AvailabilityZone"] for doc in docs.values()} == {"us-east-1a"}
    assert {len(doc["NetworkInterfaces"]) for doc in docs.values()} == {33}
    (reservation,) = cluster.cloud.things("capacity-reservation")
    assert {doc["CapacityReservationId"] for doc in docs.values()} == {reservation}
    tags = [{tag["Key"]: tag["Value"] for tag in doc["Tags"]} for doc in docs.values()]
    assert {one["orch:stack"] for one in tags} == {"tests"}
    for words in ((), ("--refresh",)):
        done = cluster.preview(TWO, *words)
        assert set(done.steps()) - {"refresh"} == {"same"}, done.text


def test_user_data_is_a_secret_in_the_state(cluster: SimulatedStack) -> None:
    state = cluster.rehearsal.project.checkpoint("t")
    assert state is not None
    assert "# node 0" not in state.read_text()


def test_a_changed_template_replaces_and_a_changed_tag_does_not(cluster: SimulatedStack) -> None:
    done = cluster.preview(Wanted(tags={"team": "a"}))
    assert done.changed() == {"node-0": ["tags.team"], "node-1": ["tags.team"]}
    assert done.steps()["update"] == 2
    done = cluster.preview(Wanted(http_tokens="optional"))
    assert done.changed()["node"] == ["metadataOptions.httpTokens"]
    assert done.changed()["node-0"] == ["launchTemplate.version"]
    assert done.steps()["replace"] == 2


def test_another_region_replaces_everything(cluster: SimulatedStack) -> None:
    done = cluster.preview(Wanted(region="us-west-2"))
    assert done.finished.code == 0, done.text
    assert done.steps()["replace"] >= 15


def test_what_was_changed_behind_the_back_is_told_and_mended(cluster: SimulatedStack) -> None:
    cloud = cluster.cloud
    lost, kept = sorted(cloud.instances(), key=lambda one: name_of(cloud.instances()[one]))
    group = next(
        g for g, doc in cloud.things("security-group").items() if doc["GroupName"].startswith("nodes-")
    )
    cloud.call("TerminateInstances", {"InstanceIds": [lost]})
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    cloud.call("AuthorizeSecurityGroupIngress", {"GroupId": group, "IpPermissions": [rule]})
    cloud.call("CreateTags", {"Resources": [kept], "Tags": [{"Key": "Name", "Value": "changed"}]})

    done = cluster.preview(TWO, "--refresh")
    assert done.steps()["create"] == 1
    changed = done.changed()
    assert changed["node-1"] == ["tags.Name"]
    assert [path for path in changed["nodes"] if path.startswith("ingress[1]")]

    assert cluster.up(TWO, "--refresh").finished.code == 0
    docs = cloud.instances()
    assert len(docs) == 2
    assert kept in docs
    assert {name_of(doc) for doc in docs.values()} == {"node-0", "node-1"}
    found = cloud.call("DescribeSecurityGroups", {"GroupIds": [group]})["SecurityGroups"][0]
    assert [one["IpProtocol"] for one in found["IpPermissions"]] == ["-1"]
    assert set(cluster.preview(TWO, "--refresh").steps()) - {"refresh"} == {"same"}


def name_of(doc: Any) -> str:
    return next(tag["Value"] for tag in doc["Tags"] if tag["Key"] == "Name")


def test_a_zone_with_too_little_refuses_with_the_clouds_code_and_launches_nothing(
    stack: SimulatedStack,
) -> None:
    stack.cloud.turn(capacity={"p5.48xlarge@us-east-1a": 1})
    done = stack.up(TWO)
    assert done.finished.code != 0
    assert (
        "api error InsufficientInstanceCapacity: We currently do not have sufficient p5.48xlarge"
        in done.errors
    )
    assert "Traceback" not in done.text
    assert not stack.cloud.instances()
    assert not stack.cloud.things("capacity-reservation")
    stack.cloud.turn(capacity={})
    assert stack.up(TWO).finished.code == 0
    assert len(stack.cloud.instances()) == 2
    assert stack.destroy().finished.code == 0
    assert stack.cloud.everything() == {}


def test_throttled_calls_are_repeated_and_the_cluster_comes_up(stack: SimulatedStack) -> None:
    stack.cloud.turn(rate={"*": {"burst": 4, "per_second": 40}})
    done = stack.up(TWO)
    assert done.finished.code == 0, done.text
    assert "RequestLimitExceeded" in {call.error for call in stack.cloud.calls}
    assert len(stack.cloud.instances()) == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_engine_killed_in_the_middle_leaves_what_the_list_says(stack: SimulatedStack, when: str) -> None:
    both = 'kill -9 "$ORCH_SIM_PARENT" "$ORCH_SIM_PID"'
    hook = {"action": "RunInstances", "nth": 2, "when": when, "command": both}
    # Launches take a while, so that everything else is made by then.
    stack.cloud.turn(hooks=[hook], latency_s={"RunInstances": 3.0})
    assert stack.up_apart(TWO)[0] != 0
    provider = ("orch.rehearsal.aws.plugin", "main()")
    until(lambda: not at_work(stack.rehearsal.project.root, *provider), 60, "the provider ends")
    launches = [call for call in stack.cloud.calls if call.action == "RunInstances"]
    assert len(launches) == 2
    there = set(stack.cloud.instances())
    assert len(there) == sum(call.done for call in launches)
    assert len(there) >= (1 if when == "after" else 0)

    # What nobody recorded is found by its tag through boto3, as a clean-up would.
    repair_files(stack.rehearsal.project, "t")  # as `orch` does: the engine may have died while writing
    assert stack.call("cancel", "--yes").finished.code == 0
    recorded = {one["id"] for one in instances_in_state(stack)}
    ec2 = stack.rehearsal.session().client("ec2")
    tagged = [
        {"Name": "tag:orch:stack", "Values": ["tests"]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    found = ec2.describe_instances(Filters=tagged)["Reservations"]
    assert {one["InstanceId"] for group in found for one in group["Instances"]} == there
    if there - recorded:
        ec2.terminate_instances(InstanceIds=sorted(there - recorded))

    stack.cloud.turn(latency_s={})
    code, said = stack.up_apart(TWO)
    assert code == 0, said
    assert set(stack.cloud.instances()) == {one["id"] for one in instances_in_state(stack)}
    assert len(stack.cloud.instances()) == 2
    assert stack.destroy().finished.code == 0
    assert stack.cloud.everything() == {}


def instances_in_state(stack: SimulatedStack) -> list[Any]:
    file = stack.rehearsal.project.checkpoint("t")
    assert file is not None
    found = json.loads(file.read_text())["checkpoint"]["latest"]["resources"]
    return [one for one in found if one["type"] == "aws:ec2/instance:Instance"]


def test_an_instance_that_nobody_recorded_is_adopted(stack: SimulatedStack) -> None:
    assert stack.up(TWO).finished.code == 0
    node = next(one for one, doc in stack.cloud.instances().items() if name_of(doc) == "node-0")
    urn = "urn:pulumi:t::tests::aws:ec2/instance:Instance::node-0"
    assert stack.call("state", "delete", urn, "--yes").finished.code == 0
    done = stack.up(Wanted(adopt=node))
    assert done.finished.code == 0, done.text
    assert done.steps()["import"] == 1
    assert len(stack.cloud.instances()) == 2
    assert set(stack.preview(TWO, "--refresh").steps()) - {"refresh"} == {"same"}


def test_the_provider_refuses_to_work_outside_a_rehearsal(stack: SimulatedStack) -> None:
    (stack.rehearsal.project.account).rename(stack.folder / "away.db")
    done = stack.preview(TWO)
    assert done.finished.code != 0
    assert "there is no rehearsal here" in done.text
