"""AWS fleets through the real engine, on a simulated account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.clouds.aws_engine import Stack, stack
from kit.clouds.cloud_engine import quiet
from kit.ledgers.activeruns import fail, left, start

from orch.components.request import Approvals
from orch.spec.loader.load import load_paths
from orch.spec.models import Fleet
from orch.stacks.errors import Conflict
from orch.stacks.plans.request import FleetRequest
from orch.stacks.provisioning import operations

ROOT = Path(__file__).parents[3]
QUOTAS = {"L-417A185B": 20_000, "L-DB2E81BA": 20_000, "L-2C3B7624": 20_000, "L-1216C47A": 20_000}

LISTS = {"DescribeInstances", "DescribeNetworkInterfaces"}

pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture
def lab(tmp_path: Path) -> Stack:
    return stack(tmp_path / "project", quotas=QUOTAS)


def fleet(**more: Any) -> Fleet:
    base = {"type": "fleet", "name": "p5", "backends": ["aws"], "placement": "cluster", "nodes": "2"}
    return Fleet.model_validate({**base, "instance_types": ["p5.48xlarge"], "regions": ["us-east-1"], **more})


def asked(lab: Stack, since: int) -> set[str]:
    """What a plan asked of the account, from that call on."""
    return {call.action for call in lab.cloud.calls[since:] if call.caller == "boto3"}


def example(name: str) -> Fleet:
    (model,) = load_paths([ROOT / "examples" / "aws" / name]).require().fleets
    return model


def pending(changes: Any) -> list[tuple[str, str]]:
    return [(change.op, change.name) for change in changes if change.op != "same"]


@pytest.mark.timeout(600)
def test_the_example_comes_up_whole_and_no_node_goes_under_a_run_unless_it_is_forced(lab: Stack) -> None:
    wanted = example("p5-cluster.yml")
    first = lab.plan(wanted)
    assert {change.op for change in first.changes} == {"create"}
    assert first.delta == first.hourly > 0
    assert len(lab.up(wanted)) == len(first.changes)
    assert len(lab.live(instance_type="p5.48xlarge")) == 2
    before = len(lab.cloud.calls)
    again = lab.plan(wanted)
    assert pending(again.changes) == []
    # What runs in the account counts for nodes that have to be made alone: of a thousand it is a long list.
    assert not LISTS & asked(lab, before)
    assert (again.drift, again.delta, again.hourly, again.unpriced) == ((), 0, first.hourly, first.unpriced)
    assert lab.drift() == ()
    state = lab.state()
    assert [node.name for node in state.nodes] == ["p5-0", "p5-1"]
    assert state.interconnect == "efa"
    assert all(len(node.topology) == 3 for node in state.nodes)
    assert all(node.ssh.jump[0].proxy_command for node in state.nodes)

    start(lab.project, "train", state.nodes[1], fleet="p5")
    one = wanted.model_copy(update={"nodes": fleet(nodes="1").nodes})
    larger = fleet(resources={"disk": "300GB"}).resources
    for act in (
        lab.down,
        lambda: lab.up(one),
        lambda: lab.up(wanted.model_copy(update={"resources": larger})),
        lambda: operations.remove_nodes(lab.project, "p5", [1], quiet),
    ):
        with pytest.raises(Conflict, match="train") as caught:
            act()
        assert (caught.value.exit_code, caught.value.code) == (9, "ORCH386")
        assert len(lab.live("us-east-1", "p5.48xlarge")) == 2
    assert pending(lab.up(wanted)) == []
    start(lab.project, "lost", *state.nodes, fleet="p5")
    fail(lab.project, "lost")
    operations.up(lab.project, FleetRequest(one, lab.folder, Approvals(force=True)), quiet)
    assert len(lab.live("us-east-1", "p5.48xlarge")) == 1
    assert left(lab.project) == {"lost": ["p5-0"]}
    lab.down()  # the node that is left has no run
    assert lab.cloud.everything() == {}
    assert left(lab.project) == {}


@pytest.mark.timeout(600)
def test_a_fleet_is_mended_grown_shrunk_replaced_and_moved_as_its_file_says(lab: Stack) -> None:
    lab.up(fleet())
    # What changed behind its back is told, and mended.
    ec2 = lab.session.client("ec2", region_name="us-east-1")
    first, second = sorted(lab.live("us-east-1", "p5.48xlarge"), key=lambda each: each["PrivateIpAddress"])
    ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    ec2.create_tags(Resources=[second["InstanceId"]], Tags=[{"Key": "team", "Value": "someone else"}])
    group = next(each["GroupId"] for each in second["SecurityGroups"])
    world = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=world)
    mends = pending(lab.preview(fleet()))
    assert sorted(op for op, name in mends if name in ("p5-0", "p5-1")) == ["create", "update"]
    assert ("update", "p5-nodes") in mends
    lab.up(fleet())
    assert len(lab.live("us-east-1", "p5.48xlarge")) == 2
    rules = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
    assert not [rule for rule in rules if rule.get("IpRanges")]

    # Growing touches no node, and that nothing else is left to do shows that it was mended.
    before = {each["InstanceId"] for each in lab.live("us-east-1", "p5.48xlarge")}
    calls = len(lab.cloud.calls)
    grown = pending(lab.up(fleet(nodes="4")))
    assert asked(lab, calls) >= LISTS
    assert sorted(grown) == [("create", "p5-2"), ("create", "p5-3"), ("update", "p5-capacity")]
    assert pending(lab.up(fleet(nodes="4", init=["echo new"]))) == [("update", "p5-template")]
    assert before < {each["InstanceId"] for each in lab.live("us-east-1", "p5.48xlarge")}
    # Shrinking takes the last.
    shrunk = pending(lab.up(fleet(nodes="1", init=["echo new"])))
    assert {name for op, name in shrunk if op == "delete"} == {"p5-1", "p5-2", "p5-3"}
    assert pending(lab.preview(fleet(nodes="1", init=["echo new"]))) == []

    # What only a new instance can have replaces it.
    local = fleet(nodes="1", scratch={"path": "/local"})
    changed = pending(lab.up(local))
    assert [op for op, name in changed if name == "p5-0"] == ["replace"]
    assert b"/local" in lab.user_data("p5-0")
    assert pending(lab.preview(local)) == []

    # Another zone in the file moves the whole fleet.
    (there,) = {each["Placement"]["AvailabilityZone"] for each in lab.live(instance_type="p5.48xlarge")}
    away, zone = ("use1-az4", "us-east-1b") if there == "us-east-1a" else ("use1-az2", "us-east-1a")
    moved = fleet(nodes="1", zones=[away])
    lab.up(moved)
    assert [each["Placement"]["AvailabilityZone"] for each in lab.live(instance_type="p5.48xlarge")] == [zone]
    assert pending(lab.preview(moved)) == []


@pytest.mark.parametrize(
    "more",
    [
        {"network": {"public_ips": True, "ssh_cidrs": ["198.51.100.0/24"]}},
        {"network": {"ssh_cidrs": ["198.51.100.0/24"]}},
        {"network": {"bastion": False}, "gang": "best-effort"},
        {"spot_policy": "spot", "instance_types": ["p4d.24xlarge"], "max_price": "20"},
        {"placement": "any", "instance_types": ["m7i.large"], "network": {"ssh_cidrs": ["198.51.100.0/24"]}},
    ],
    ids=["elastic", "bastion-with-address", "ssm", "spot", "apart"],
)
def test_the_cloud_takes_other_shapes_too(lab: Stack, more: dict[str, Any]) -> None:
    wanted = fleet(**more)
    lab.cloud.turn(quotas={**QUOTAS, "L-7212CCBC": 1000})
    lab.up(wanted)
    assert pending(lab.preview(wanted)) == []
    assert len(lab.state().nodes) == 2
    lab.down()
