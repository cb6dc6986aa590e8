"""AWS fleets through the real engine, on a simulated account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from activeruns import start
from aws_engine import Stack, stack
from cloud_engine import quiet

from orch.components.request import Approvals
from orch.spec import load_paths
from orch.spec.models import Fleet
from orch.stacks import operations
from orch.stacks.errors import Conflict, NoCapacity
from orch.stacks.request import FleetRequest

ROOT = Path(__file__).parents[3]
QUOTAS = {"L-417A185B": 20_000, "L-DB2E81BA": 20_000, "L-2C3B7624": 20_000, "L-1216C47A": 20_000}


@pytest.fixture
def lab(tmp_path: Path) -> Stack:
    return stack(tmp_path / "project", quotas=QUOTAS)


def fleet(**more: Any) -> Fleet:
    base = {"type": "fleet", "name": "p5", "backends": ["aws"], "placement": "cluster", "nodes": "2"}
    return Fleet.model_validate({**base, "instance_types": ["p5.48xlarge"], "regions": ["us-east-1"], **more})


def example(name: str) -> Fleet:
    (model,) = load_paths([ROOT / "examples" / "aws" / name]).require().fleets
    return model


def pending(changes: Any) -> list[tuple[str, str]]:
    return [(change.op, change.name) for change in changes if change.op != "same"]


def test_the_example_comes_up_and_then_nothing_is_left_to_do(lab: Stack) -> None:
    wanted = example("p5-cluster.yml")
    first = lab.preview(wanted)
    assert {change.op for change in first} == {"create"}
    lab.up(wanted)
    assert len([each for each in lab.live() if each["InstanceType"] == "p5.48xlarge"]) == 2
    assert pending(lab.preview(wanted)) == []
    assert lab.drift() == ()
    state = lab.state()
    assert [node.name for node in state.nodes] == ["p5-0", "p5-1"]
    assert state.interconnect == "efa"
    assert all(len(node.topology) == 3 for node in state.nodes)
    assert all(node.jump[0].proxy_command for node in state.nodes)
    lab.down()
    assert lab.live() == []


# EFA interfaces of each type.
def test_no_node_goes_under_a_run_unless_it_is_forced(lab: Stack) -> None:
    lab.up(fleet())
    start(lab.project, "train", lab.state().nodes[1], fleet="p5")
    for act in (
        lab.down,
        lambda: lab.up(fleet(nodes="1")),
        lambda: lab.up(fleet(resources={"disk": "300GB"})),
        lambda: operations.remove_nodes(lab.project, "p5", [1], quiet),
    ):
        with pytest.raises(Conflict, match="train") as caught:
            act()
        assert (caught.value.exit_code, caught.value.code) == (9, "ORCH386")
        assert len(lab.live("us-east-1", "p5.48xlarge")) == 2
    assert pending(lab.up(fleet())) == []
    forced = FleetRequest(fleet(nodes="1"), lab.folder, Approvals(force=True))
    operations.up(lab.project, forced, quiet)
    assert len(lab.live("us-east-1", "p5.48xlarge")) == 1
    lab.down()  # the node that is left has no run
    assert lab.live() == []


def test_what_changed_behind_its_back_is_told_and_mended(lab: Stack) -> None:
    lab.up(fleet())
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
    assert pending(lab.preview(fleet())) == []
    assert len(lab.live("us-east-1", "p5.48xlarge")) == 2
    rules = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
    assert not [rule for rule in rules if rule.get("IpRanges")]


def test_a_zone_without_room_refuses_all_at_once(lab: Stack) -> None:
    first, second = "us-east-1a", "us-east-1b"
    lab.cloud.turn(capacity={f"p5.48xlarge@{first}": 3})
    with pytest.raises(NoCapacity) as refused:
        lab.up(fleet(nodes="8", zones=[first]))
    assert "InsufficientInstanceCapacity" in refused.value.text()
    assert lab.live("us-east-1", "p5.48xlarge") == []
    assert lab.cloud.everything() == {}
    lab.up(fleet(nodes="8", zones=[first, second]))
    zones = {each["Placement"]["AvailabilityZone"] for each in lab.live("us-east-1", "p5.48xlarge")}
    assert zones == {second}


def test_another_zone_in_the_file_moves_the_whole_fleet(lab: Stack) -> None:
    lab.up(fleet(zones=["use1-az1"]))
    lab.up(fleet(zones=["use1-az2"]))
    zones = [each["Placement"]["AvailabilityZone"] for each in lab.live(instance_type="p5.48xlarge")]
    assert zones == ["us-east-1a"] * 2
    assert pending(lab.preview(fleet(zones=["use1-az2"]))) == []


def test_growing_touches_no_node_and_shrinking_takes_the_last(lab: Stack) -> None:
    lab.up(fleet())
    before = {each["InstanceId"] for each in lab.live("us-east-1", "p5.48xlarge")}
    grown = pending(lab.up(fleet(nodes="4", init=["echo new"])))
    assert sorted(grown) == [("create", "p5-2"), ("create", "p5-3"), ("update", "p5-capacity")]
    assert before < {each["InstanceId"] for each in lab.live("us-east-1", "p5.48xlarge")}
    shrunk = pending(lab.up(fleet(nodes="1", init=["echo new"])))
    assert {name for op, name in shrunk if op == "delete"} == {"p5-1", "p5-2", "p5-3"}
    assert pending(lab.preview(fleet(nodes="1", init=["echo new"]))) == []


def test_what_only_a_new_instance_can_have_replaces_them(lab: Stack) -> None:
    lab.up(fleet(nodes="1"))
    changed = pending(lab.up(fleet(nodes="1", scratch={"path": "/local"})))
    assert [op for op, name in changed if name == "p5-0"] == ["replace"]
    assert b"/local" in lab.user_data("p5-0")
    assert pending(lab.preview(fleet(nodes="1", scratch={"path": "/local"}))) == []


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
