"""AWS fleets that leave open how many nodes they have, through the real engine, on a simulated account."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.clouds.aws_engine import Stack, stack
from kit.clouds.cloud_engine import quiet

from orch.cli.driver.new_nodes import NewNodes, make, tell_of_later_nodes
from orch.rehearsal.aws.api.actions import ACCOUNT
from orch.runner.errors import NoFit
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet, Task
from orch.stacks.errors import Conflict, NoCapacity
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import FleetRequest
from orch.stacks.provisioning import operations
from orch.stacks.runs.nodes_for_runs import Growth, growth_for, make_nodes, plan_growth
from orch.stacks.stack.state import StackState

QUOTAS = {"L-417A185B": 20_000, "L-DB2E81BA": 20_000}
TYPE = "g6.xlarge"

pytestmark = [pytest.mark.usefixtures("engine", "forked_providers"), pytest.mark.timeout(600)]


def fleet(nodes: object, **more: Any) -> Fleet:
    base = {"type": "fleet", "name": "p5", "backends": ["aws"], "instance_types": [TYPE]}
    return Fleet.model_validate({**base, "regions": ["us-east-1"], "nodes": nodes, **more})


def ops(plan: Plan) -> list[tuple[str, str]]:
    return [(change.op, change.name) for change in plan.changes if change.op != "same"]


def nodes(lab: Stack) -> list[str]:
    live = lab.live(instance_type=TYPE)
    return sorted(tag["Value"] for each in live for tag in each["Tags"] if tag["Key"] == "Name")


def grow(lab: Stack, wanted: Fleet, count: int) -> Plan:
    return operations.up(lab.project, FleetRequest(wanted, lab.folder, count=count), quiet)


def test_a_fleet_that_begins_without_nodes_is_a_record_and_keeps_what_it_gets(tmp_path: Path) -> None:
    lab = stack(tmp_path / "project", quotas=QUOTAS)
    empty = lab.plan(fleet("0..4"))
    assert ops(empty) == [("create", "p5")]
    assert empty.hourly == 0
    assert empty.reasons[0].startswith("no node now; runs make up to 4: g6.xlarge")
    lab.up(fleet("0..4"))
    assert (lab.live(), lab.state().nodes, lab.state().backend) == ([], (), "aws")
    assert ops(lab.plan(fleet("0..4"))) == []
    assert lab.drift() == ()

    # The first nodes make all that stands around them.
    grown = grow(lab, fleet("0..4"), 3)
    assert ("create", "p5-0") in ops(grown)
    assert {op for op, _ in ops(grown)} == {"create"}
    assert nodes(lab) == ["p5-0", "p5-1", "p5-2"]
    later = lab.plan(fleet("0..4"))
    assert (ops(later), later.unrecorded, later.hourly) == ([], False, grown.hourly)

    # A node that ended itself is no drift, and no plan brings it back; one that somebody ended is made again.
    tagged = [(tag["Value"], each["InstanceId"]) for each in lab.live() for tag in each["Tags"]]
    ids = {value: instance for value, instance in tagged if value.startswith("p5-")}
    lab.cloud.shut_down(ids["p5-2"])
    assert nodes(lab) == ["p5-0", "p5-1"]
    idle = lab.plan(fleet("0..4"))
    assert (ops(idle), idle.drift, idle.lost_nodes, idle.unrecorded) == ([], (), frozenset(), True)
    assert "p5-2 ended itself" in idle.reasons[-1]
    assert lab.drift() == ()
    lab.session.client("ec2", region_name="us-east-1").terminate_instances(InstanceIds=[ids["p5-1"]])
    assert ops(lab.plan(fleet("0..4"))) == [("create", "p5-1")]
    assert [each.name for each in lab.drift()] == ["p5-1"]
    lab.up(fleet("0..4"))
    assert nodes(lab) == ["p5-0", "p5-1"]
    assert lab.plan(fleet("0..4")).unrecorded is False
    grow(lab, fleet("0..4"), 3)
    assert nodes(lab) == ["p5-0", "p5-1", "p5-2"]

    # A node that was removed stays away; the others keep their names, and a wider range takes none.
    operations.remove_nodes(lab.project, "p5", [1], quiet)
    assert ops(lab.plan(fleet("0..4"))) == []
    wider = lab.plan(fleet("0..8"))
    assert (ops(wider), wider.unrecorded) == ([], True)
    # Nodes below the minimum do not end themselves: new ones start with that.
    assert ops(lab.plan(fleet("3..8"))) == [("create", "p5-1"), ("update", "p5-template")]
    assert lab.plan(fleet("0..1")).lost_nodes == {"p5-2"}
    assert nodes(lab) == ["p5-0", "p5-2"]

    # Without nodes it keeps its place, and can have some again.
    operations.remove_nodes(lab.project, "p5", [0, 2], quiet)
    assert ops(lab.plan(fleet("0..4"))) == []
    grow(lab, fleet("0..4"), 1)
    assert nodes(lab) == ["p5-0"]
    # No plan brings back what EC2 took from the spot market either.
    (taken,) = (each["InstanceId"] for each in lab.live() if {"Key": "Name", "Value": "p5-0"} in each["Tags"])
    lab.cloud.take_back(taken)
    assert (ops(lab.plan(fleet("0..4"))), lab.drift()) == ([], ())
    lab.down()
    assert lab.cloud.everything() == {}


def test_a_target_that_was_not_reached_is_tried_again(tmp_path: Path) -> None:
    place = {"availability_zones": ["us-east-1a"]}
    lab = stack(tmp_path / "project", quotas=QUOTAS, capacity={f"{TYPE}@us-east-1a": 2})
    asked = fleet({"min": 1, "target": 3, "max": 4}, **place)
    lab.up(asked)
    assert len(nodes(lab)) == 2
    assert [op for op, _ in ops(lab.plan(asked))] == ["create"]
    lab.cloud.turn(capacity={})
    lab.up(asked)
    assert nodes(lab) == ["p5-0", "p5-1", "p5-2"]
    operations.remove_nodes(lab.project, "p5", [2], quiet)
    assert ops(lab.plan(asked)) == []
    lab.down()
    assert lab.cloud.everything() == {}


FILE = """
type: fleet
name: p5
backends: [aws]
instance_types: [g6.xlarge]
regions: [us-east-1]
availability_zones: [us-east-1a]
placement: cluster
network: {interconnect: ethernet, bastion: false}
nodes: 0..2
"""


def growth(lab: Stack, free: frozenset[str] = frozenset(), **task: Any) -> Growth | None:
    asked = Task.model_validate({"type": "task", "commands": ["true"], **task})
    return growth_for(lab.project, asked, lab.state(), free)


DETACHED: Any = SimpleNamespace(name="train")


def test_a_run_gets_all_nodes_that_it_lacks_or_leaves_none_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = stack(tmp_path / "project", quotas=QUOTAS, capacity={f"{TYPE}@us-east-1a": 1})
    file = lab.folder / "fleet.yml"
    file.write_text(FILE)
    asked = fleet("0..2", placement="cluster", network={"interconnect": "ethernet", "bastion": False})
    lab.up(asked)

    # What new nodes would not be is told before anything is made.
    unfit: dict[str, Any]
    for unfit in ({"resources": {"gpu": "H100"}}, {"spot_policy": "spot"}, {"max_price": "0.01"}):
        needs = growth(lab, **unfit)
        assert needs is not None
        with pytest.raises(NoFit, match="does not fit this task"):
            plan_growth(lab.project, needs, quiet)
    assert growth(lab, nodes=3) is None

    # One of two is to be had: none stays, and the fleet is what it was.
    needs = growth(lab, nodes=2)
    assert needs is not None
    plan = plan_growth(lab.project, needs, quiet)
    assert plan.hourly > 0
    with pytest.raises(NoCapacity):
        make_nodes(lab.project, needs, plan, quiet)
    assert lab.cloud.everything() == {}
    assert lab.state().nodes == ()

    lab.cloud.turn(capacity={})
    needs = growth(lab)
    assert needs is not None
    tell_of_later_nodes(lab.project, StackState(lab.project, "p5"), DETACHED)  # it is nowhere yet
    assert make(lab.project, needs, NewNodes(True, True, "", as_json=True))
    tell_of_later_nodes(lab.project, StackState(lab.project, "p5"), DETACHED)
    assert nodes(lab) == ["p5-0"]
    whom = f"simulated AWS account {ACCOUNT} as arn:aws:iam::{ACCOUNT}:user/rehearsal"
    assert [line for line in capsys.readouterr().err.splitlines() if "credentials" in line] == [
        "run train: nodes for later attempts are made with the credentials of this shell",
        f"fleet p5: they are made with the credentials of {whom}",
        f"run train: nodes for later attempts are made with the credentials of {whom}",
    ]

    # Who cannot be asked fails nothing.
    lab.cloud.turn(denied=("GetCallerIdentity",))
    tell_of_later_nodes(lab.project, StackState(lab.project, "p5"), DETACHED)
    warning, line = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: whose credentials make nodes could not be asked: ")
    assert line.endswith("made with the credentials of this shell")
    lab.cloud.turn(denied=())

    # Beside the node that is free one more does; beside one that is taken nothing but one fits.
    more, instead = growth(lab, frozenset({"p5-0"}), nodes=2), growth(lab)
    assert more is not None
    assert instead is not None
    assert (more.more, instead.more) == (1, 1)
    assert growth(lab, nodes=2) is None

    # A change that somebody would see and agree to waits for `orch up` where nobody is asked.
    file.write_text(FILE + "idle_duration: 2h\n")
    changed = growth(lab)
    assert changed is not None
    assert ("create", "p5-1") in ops(plan_growth(lab.project, changed, quiet))
    with pytest.raises(Conflict, match="not brought up") as refused:
        plan_growth(lab.project, changed, quiet, asked=False)
    assert "update p5-template" in (refused.value.detail or "")
    assert f"`orch up {file}`" in (refused.value.hint or "")
    file.write_text(FILE)
    alone = growth(lab)
    assert alone is not None
    assert ops(plan_growth(lab.project, alone, quiet, asked=False)) == [("create", "p5-1")]

    # Other changes of the file wait for `orch up`.
    file.write_text(FILE.replace("g6.xlarge", "g6.2xlarge"))
    changed = growth(lab)
    assert changed is not None
    with pytest.raises(Conflict, match="not brought up"):
        plan_growth(lab.project, changed, quiet)
    lab.down()
    assert lab.cloud.everything() == {}


def test_a_run_with_a_reservation_has_nodes_made_from_it_where_the_fleet_names_that_or_none(
    tmp_path: Path,
) -> None:
    lab = stack(tmp_path / "project", quotas=QUOTAS)
    held, other = (reserved(lab, count) for count in (2, 1))
    file = lab.folder / "fleet.yml"
    asked = fleet("0..3", placement="cluster", network={"interconnect": "ethernet", "bastion": False})
    lab.up(asked)
    for unlike in (f"reservation: {other}", "spot_policy: spot"):
        file.write_text(f"{FILE}{unlike}\n")
        assert growth(lab, reservation=held) is None

    file.write_text(FILE.replace("0..2", "0..3"))
    needs = growth(lab, reservation=held)
    assert needs is not None
    make_nodes(lab.project, needs, plan_growth(lab.project, needs, quiet), quiet)
    assert [node.reservation for node in lab.state().nodes] == [held]
    assert [each["CapacityReservationId"] for each in lab.live(instance_type=TYPE)] == [held]

    # They stay in it, whatever is planned, and so do nodes that another run needs.
    assert ops(lab.plan(asked)) == []
    assert growth(lab, reservation=other) is None
    needs = growth(lab)
    assert needs is not None
    make_nodes(lab.project, needs, plan_growth(lab.project, needs, quiet), quiet)
    assert [node.reservation for node in lab.state().nodes] == [held] * 2
    full = growth(lab, reservation=held)
    assert full is not None
    with pytest.raises(PlanErrors, match="holds 2 instances"):
        plan_growth(lab.project, full, quiet)
    lab.down()


def reserved(lab: Stack, count: int) -> str:
    made = lab.session.client("ec2", region_name="us-east-1").create_capacity_reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=count,
    )
    return made["CapacityReservation"]["CapacityReservationId"]
