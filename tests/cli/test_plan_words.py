"""What a person reads of a plan: on streams of the real engine (tests/stacks/events/README.md)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from kit.engine.recorded_plans import EVENTS, EXPLAINED, Preview

from orch.cli.output.plan import cost_line, counts, plan_json, plan_line, plan_lines, reason_lines
from orch.components.deployment import Deployment, PricedNodes
from orch.spec.state import FleetSpares
from orch.stacks.events.changes import GONE, Change, PropertyChange, PropertyDrift
from orch.stacks.events.kinds import kind_of
from orch.stacks.events.masking import HIDDEN, KNOWN_LATER
from orch.stacks.plans.headline import NO_HEADLINE, FleetRecord, headline
from orch.stacks.plans.plan import Plan, PriorFleet, plan_of
from orch.stacks.pulumi.operation import EngineCall

ALL = sorted(each.stem for each in EVENTS.glob("*.json"))
LOST = "what is on their disks is lost, /scratch too"
# What a stack of the version before had recorded of its nodes.
OLD = {"region": "us-east-1", "zone": "use1-az1", "instance_type": "p5.48xlarge"}


def told(name: str, *, verbose: bool = False, **before: Any) -> list[str]:
    """The lines of a plan below the fleet's name, without their margin."""
    lines = plan_lines(Preview.of(name).plan(**before), colour=False, verbose=verbose)
    assert lines[0].startswith("fleet ")
    return [line[2:] for line in lines[1:]]


# First, what it comes to

FIRST: dict[str, list[str]] = {
    "aws-nodes-5": ["p5-4: 1 node is added"],
    "aws-nodes-3": [
        "p5-3: 1 running node is destroyed; what is on its disks is lost, /scratch too",
    ],
    "aws-tags": ["tags owner=ada -> cost=17, owner=eve, in place on 20 resources"],
    "aws-disk": [
        f"p5-[0-3]: 4 running nodes are destroyed and made anew: root disk 100 GB -> 500 GB; {LOST}",
    ],
    "aws-any": [
        "p5-[0-3]: 4 running nodes are destroyed and made anew: network interfaces 1 ENA, 32 EFA -> 1 ENA; "
        f"placement cluster -> any; {LOST}",
    ],
    "aws-type": [
        "the fleet moves from use1-az1 to use1-az2 (type p5.48xlarge -> p5en.48xlarge; network interfaces "
        "1 ENA, 32 EFA -> 1 ENA, 16 EFA): all of it is removed first, then made anew",
        f"p5-[0-3]: 4 running nodes are destroyed; {LOST}",
    ],
    "aws-region": [
        "the fleet moves from us-east-1 to us-west-2: all of it is removed first, then made anew",
        f"p5-[0-3]: 4 running nodes are destroyed; {LOST}",
    ],
    "aws-drift-and-disk": [
        f"p5-[0-1,3]: 3 running nodes are destroyed and made anew: root disk 100 GB -> 500 GB; {LOST}",
        "p5-2: 1 node is made again; what was there is gone (drift)",
    ],
    "aws-drift-gone-and-nodes-5": [
        "p5-2: 1 node is made again; what was there is gone (drift)",
        "p5-4: 1 node is added",
    ],
    "gcp-nodes-3": ["lab-2: 1 node is added"],
    "gcp-disk": [
        "lab-[0-1]: 2 running nodes are destroyed and made anew: root disk 100 GB pd-balanced -> "
        "300 GB pd-balanced; what is on their disks is lost",
    ],
    "gcp-region": [
        "the fleet moves from us-central1 to us-west1: all of it is removed first, then made anew",
        "lab-[0-1]: 2 running nodes are destroyed; what is on their disks is lost",
    ],
    "gcp-tags": ["labels owner=ada -> owner=eve, in place on 2 resources"],
    "local-nodes-1": ["laptop-1: 1 running node is destroyed; what is in its container is lost"],
    "local-nodes-3": ["laptop-2: 1 node is added"],
    "local-cpu": ["CPUs 1 -> 2, in place on 2 resources"],
    "local-no-memory-limit": [
        "laptop-[0-1]: 2 running nodes are destroyed and made anew: "
        "memory 1024 MiB -> all of this machine's; what is in their containers is lost",
    ],
    "local-drift-and-memory": ["memory 1024 MiB -> 2048 MiB, in place on 2 resources"],
    "ssh-a-host-more": ["gpu4: 1 host is added"],
    "ssh-a-host-less": ["gpu3: 1 host is taken out of the fleet; it is left as it was found"],
}


@pytest.mark.parametrize("name", FIRST)
def test_a_plan_says_first_what_it_does_to_the_fleet(name: str) -> None:
    assert told(name)[: len(FIRST[name])] == FIRST[name]
    assert list(Preview.of(name).plan().headline.lines) == FIRST[name]


@pytest.mark.parametrize("name", ["aws-as-it-is", "local-as-it-is", "ssh-as-it-is"])
def test_a_fleet_as_its_file_says_has_nothing_to_tell(name: str) -> None:
    assert told(name) == []
    # Nor has one that an older orch brought up, which recorded nothing of what its nodes are.
    assert told(name, traits={}) == []


def test_a_fleet_of_an_older_orch_has_the_words_that_the_events_tell() -> None:
    assert told("aws-disk", traits=OLD)[0] == FIRST["aws-disk"][0]
    assert told("aws-region", traits=OLD)[:2] == FIRST["aws-region"]
    assert told("local-cpu", traits={})[0] == FIRST["local-cpu"][0]
    # What neither tells stays with the properties.
    lines = told("aws-any", traits=OLD)
    assert lines[0] == f"p5-[0-3]: 4 running nodes are destroyed and made anew; {LOST}"
    assert "    networkInterfaces[1-32]: 32 removed" in lines


# Then drift, and only drift


@pytest.mark.parametrize("name", [name for name in ALL if "drift" not in name])
def test_no_word_of_drift_where_nothing_drifted(name: str) -> None:
    for verbose in (False, True):
        assert "drift" not in "\n".join(told(name, verbose=verbose))


def test_drift_has_its_own_lines_and_its_word_at_the_property() -> None:
    assert told("local-drift-and-memory")[1:] == [
        "drift, changed outside orch since the last `up`:",
        "  laptop-1: memory_mib: registered 1024, found 900",
        "~ laptop-0  node",
        "~ laptop-1  node",
        "    memory_mib: 900 -> 2048 (drift: registered 1024)",
    ]
    assert told("ssh-drift") == [
        "drift, changed outside orch since the last `up`:",
        "  gpu1: gpu_count: registered 8, found 7",
        "~ gpu1  host",
        "    gpu_count: 7 -> 8 (drift: changed outside orch)",
    ]


def test_resources_of_one_name_are_told_apart_in_drift() -> None:
    lines = told("aws-drift")
    assert lines[1] == "  instance p5-1: tags.owner: registered ada, found mallory"
    assert lines[2].startswith(
        "  security group p5-nodes: ingress[2]: registered (none), found {cidrBlocks: ["
    )


# Then the resources


def test_what_has_been_said_or_only_follows_is_not_said_again() -> None:
    assert told("aws-disk")[1:] == [
        "± p5-[0-3]  instance (4)",
        "~ p5-template  launch template",
    ]
    assert told("aws-any")[1:] == [
        "- p5-capacity  capacity reservation",
        "± p5-[0-3]  instance (4)",
        "~ p5-template  launch template",
        "- p5-group  placement group",
    ]
    for name in ALL:
        assert "known after up" not in "\n".join(told(name)), name


def test_verbose_tells_the_types_that_pulumi_knows_beside_the_kinds() -> None:
    lines = told("aws-disk", verbose=True)
    assert "± p5-[0-3]  instance (4)  aws:ec2/instance:Instance" in lines


def test_equal_nodes_of_a_new_fleet_are_one_line_and_resources_of_one_name_are_told_apart() -> None:
    def new(type_: str, name: str) -> Change:
        return Change("create", type_, name, f"urn::{type_}::{name}")

    nodes = [new("aws:ec2/instance:Instance", f"p5-{at}") for at in range(8)]
    named = [new(f"aws:ec2/{each[0].lower()}{each[1:]}:{each}", "p5-nodes") for each in AWS_TYPES]
    plan = Plan("p5", "p5", (*nodes, *named), (), hourly=0, delta=0)
    assert plan_lines(plan, colour=False)[1:] == [
        "  + p5-[0-7]  instance (8)",
        "  + p5-nodes  security group",
        "  + p5-nodes  launch template",
        "  + p5-nodes  VPC endpoint",
        "  + p5-nodes  NAT gateway",
    ]
    assert counts(plan.changes, done=True) == (
        "12 created (8 instances, 1 security group, 1 launch template, 1 VPC endpoint, 1 NAT gateway)"
    )


AWS_TYPES = ("SecurityGroup", "LaunchTemplate", "VpcEndpoint", "NatGateway")


@pytest.mark.parametrize("name", ALL)
def test_every_resource_of_a_plan_has_a_kind_in_words(name: str) -> None:
    for change in Preview.of(name).changes:
        kind = kind_of(change.type)
        assert re.fullmatch("[A-Za-z]+( [A-Za-z]+)*", kind), change.type
        assert ":" not in kind


def test_a_fleet_that_moves_is_three_lines() -> None:
    plan = Preview.of("aws-region").plan()
    assert told("aws-region")[2:] == ["± every resource of it; -v names them"]
    assert counts(plan.changes, moves=plan.headline.moves) == "25 to delete first, 25 to create then"


def test_the_same_change_of_many_kinds_of_resources_is_one_line() -> None:
    (line,) = told("aws-tags")[1:]
    assert line.startswith("~ p5-[0-3],p5-bastion,p5-capacity,")
    assert line.endswith("  20 resources of 13 types")


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_printed_as_python_writes_it(name: str) -> None:
    for verbose in (False, True):
        text = "\n".join(told(name, verbose=verbose))
        assert not [mark for mark in ("{'", "['", "': ", "None", "True", "False") if mark in text]


@pytest.mark.parametrize("name", ALL)
def test_verbose_has_a_line_for_every_property_of_the_json(name: str) -> None:
    preview = Preview.of(name)
    text = "\n".join(told(name, verbose=True))
    for change in preview.changes:
        for leaf in change.diff:
            assert leaf.path.split("[")[0].split(".")[0] in text, (change.name, leaf.path)


def test_verbose_names_members_of_lists_together_where_the_same_happens_to_them() -> None:
    lines = told("aws-region", verbose=True)
    (line,) = [line for line in lines if "subnetId" in line and "networkInterfaces" in line]
    assert line.startswith("    networkInterfaces[0-32].subnetId: subnet-")
    assert line.endswith(" -> (known after up)")


def test_nodes_fold_when_only_what_is_their_own_tells_them_apart() -> None:
    def node(index: int) -> Change:
        own = {"Name": f"lab-{index}", "host": f"orch-x-{index}", "id": f"i-{index}abc"}
        leaves = (
            PropertyChange("names", own, {**own, "team": "x"}),
            PropertyChange("host", f"orch-x-{index}", f"orch-y-{index}"),
            PropertyChange("ip", f"10.0.0.{index + 10}", f"10.1.0.{index + 10}"),
            PropertyChange("of", f"i-{index}abc", "none"),
        )
        return Change("update", "x:y:Node", f"lab-{index}", f"urn::{index}", leaves, id=f"i-{index}abc")

    plan = Plan("lab", "lab", tuple(node(i) for i in range(4)), (), hourly=0, delta=0)
    assert plan_lines(plan, colour=False)[1:] == [
        "  ~ lab-[0-3]  node (4)",
        "      names.team: (none) -> x",
        "      host: orch-x-N -> orch-y-N",
        "      ip: ADDRESS -> ADDRESS",
        "      of: ID -> none",
    ]


def test_nodes_that_differ_in_more_are_told_one_by_one() -> None:
    def node(index: int, racks: str) -> Change:
        leaves = (PropertyChange("rack", "a", racks),)
        return Change("update", "x:y:Node", f"lab-{index}", f"urn::{index}", leaves)

    plan = Plan("lab", "lab", (node(0, "b"), node(1, "c"), node(2, "b")), (), hourly=0, delta=0)
    assert [line for line in plan_lines(plan, colour=False) if "~" in line] == [
        "  ~ lab-[0,2]  node (2)",
        "  ~ lab-1  node",
    ]


def test_a_secret_that_changes_is_told_to_change() -> None:
    change = Change("update", "x:y:Z", "a", "urn", (PropertyChange("key", HIDDEN, HIDDEN),))
    assert plan_lines(Plan("f", "f", (change,), (), hourly=0, delta=0), colour=False)[-1] == (
        "      key: another secret"
    )


def test_what_is_only_recorded_is_due_and_told() -> None:
    plan = Plan("lab", "lab", (), (), hourly=3.0, delta=0.0, unrecorded=True)
    assert not plan.is_due
    assert "recorded" not in plan_line(plan)
    other = replace(plan, rewatched=True)
    assert other.is_due
    assert not other.pending
    assert "; `health` of its file is recorded; costs $3.00 per hour (+0.00)" in plan_line(other)
    spares = FleetSpares(count=1, of=3)
    other = replace(plan, respared=True, spares=spares, spares_hourly=1.0)
    assert other.is_due
    words = "; the number of its spares is recorded; costs $3.00 per hour (+0.00), $1.00 of it for 1 spare"
    assert words in plan_line(other)
    assert (plan_json(other)["spares"], plan_json(plan)["spares"]) == (1, 0)


def test_another_number_of_spares_among_as_many_nodes_is_due_and_what_they_cost_is_told() -> None:
    two = PricedNodes("aws", ("a-0", "a-1"), "p5", "use1", "on-demand", 3.0)
    one = PricedNodes("aws", ("a-2",), "p5", "use2", "on-demand", 6.0)
    compiled = Deployment(
        (),
        {},
        hourly=12.0,
        register=lambda: pytest.fail("not here"),
        priced=(two, one),
        spares=FleetSpares(count=2, of=3),
    )
    nodes = FleetRecord(nodes={f"a-{index}": f"a-{index}" for index in range(3)})
    call = EngineCall(lambda event: None, planning=True)
    plan = plan_of("a", PriorFleet(12.0, nodes, spares=FleetSpares(count=1, of=3)), compiled, call)
    assert (plan.respared, plan.unrecorded, plan.pending, plan.spares_hourly) == (True, True, False, 8.0)
    # That there are fewer now is recorded, and nothing to do by the file.
    plan = plan_of("a", PriorFleet(12.0, nodes, spares=FleetSpares(count=2, of=4)), compiled, call)
    assert (plan.respared, plan.unrecorded, plan.is_due) == (False, True, False)
    plan = plan_of("a", PriorFleet(12.0, nodes, spares=compiled.spares), compiled, call)
    assert (plan.respared, plan.unrecorded, plan.is_due) == (False, False, False)


def test_a_property_that_no_row_knows_is_named_as_what_forces_new_nodes() -> None:
    leaf = PropertyChange("machine_id", "a1", "b2", replaces=True)
    change = Change("replace", "orch:ssh:Host", "gpu1", "urn", (leaf,))
    compiled = Deployment((), {}, hourly=0.0, register=lambda: pytest.fail("not here"), nodes=("gpu1",))
    (line,) = headline((change,), FleetRecord(nodes={"gpu1": "gpu1"}), compiled).lines
    assert line.startswith("gpu1: 1 running node is destroyed and made anew: machine_id a1 -> b2; ")


@pytest.mark.parametrize(
    ("old", "new"), [([{"id": "p-1"}], [{"id": KNOWN_LATER}]), ("p-1", KNOWN_LATER)], ids=["within", "whole"]
)
def test_nodes_made_anew_since_what_they_stood_on_is_gone_say_so(old: Any, new: Any) -> None:
    lost = PropertyDrift("urn:p", "lab-partition", "", "registered", GONE)
    partition = Change("create", "x:y:IbPartition", "lab-partition", "urn:p", (), (lost,))
    leaf = PropertyChange("spec.adapters", old, new, replaces=True)
    node = Change("replace", "x:y:Instance", "lab-0", "urn:n", (leaf,))
    compiled = Deployment((), {}, hourly=0.0, register=lambda: pytest.fail("not here"), nodes=("lab-0",))
    (line,) = headline((partition, node), FleetRecord(nodes={"lab-0": "lab-0"}), compiled).lines
    assert line.startswith(
        "lab-0: 1 running node is destroyed and made anew: lab-partition is gone (drift); "
    )


# For pipelines


def test_json_has_drift_of_the_plan_of_each_resource_and_of_each_property() -> None:
    data = json.loads(json.dumps(plan_json(Preview.of("aws-drift-and-tags").plan())))
    assert data["headline"] == ["tags owner=ada -> owner=eve, in place on 20 resources"]
    assert data["moves"] is False
    assert {(each["name"], each["path"]) for each in data["drift"]} == {
        ("p5-1", "tags.owner"),
        ("p5-nodes", "ingress[2]"),
    }
    nodes = {each["name"]: each for each in data["changes"] if each["type"].endswith(":Instance")}
    assert nodes["p5-1"]["drift"] == [{"path": "tags.owner", "registered": "ada", "observed": "mallory"}]
    assert nodes["p5-1"]["diff"] == [
        {
            "path": "tags.owner",
            "old": "mallory",
            "new": "eve",
            "replaces": False,
            "drift": {"registered": "ada", "observed": "mallory"},
        }
    ]
    assert nodes["p5-0"]["drift"] == []
    assert [leaf["drift"] for leaf in nodes["p5-0"]["diff"]] == [None]


def test_json_has_every_property_that_people_are_spared() -> None:
    changes = plan_json(Preview.of("aws-any").plan())["changes"]
    (template,) = [each for each in changes if each["name"] == "p5-template"]
    assert sum(leaf["path"].startswith("networkInterfaces[") for leaf in template["diff"]) == 32


# What it costs


@pytest.mark.parametrize(("delta", "shown"), [(-0.001, "+0.00"), (-0.0, "+0.00"), (-1.5, "-1.50")])
def test_nothing_costs_less_than_nothing(delta: float, shown: str) -> None:
    plan = Plan("f", "f", (), (), hourly=3.0, delta=delta, headline=NO_HEADLINE)
    assert cost_line(plan) == f"costs $3.00 per hour ({shown})"


@pytest.mark.parametrize("backend", ["aws", "gcp"])
def test_nodes_do_not_follow_what_new_ones_start_with_and_a_plan_says_so(backend: str) -> None:
    explained = EXPLAINED[backend]
    template = Change("replace", str(explained.template), "f-template", "urn:t")
    node = Change("same", "x:y:Node", "f-0", "urn:n")
    compiled = Deployment((), {}, hourly=0.0, register=lambda: pytest.fail("not here"), nodes=("f-0",))
    compiled = replace(compiled, explained=explained)
    up = FleetRecord(nodes={"f-0": "f-0"})
    (line,) = headline((template, node), up, compiled).lines
    assert line == "what nodes start with changes for new ones; those that run stay as they are"
    # Where there are none yet, or more changes, it goes without saying.
    assert headline((template,), FleetRecord(), compiled).lines == ()
    other = Change("update", "x:y:Z", "z", "urn:z")
    assert headline((template, other), up, compiled).lines == ()


# Why it is so

WHY = ("2 x g6.xlarge in us-east-1", "addresses: private ones only")


@pytest.mark.parametrize(
    ("former", "op", "verbose", "shown"),
    [
        ((), "create", False, WHY),
        ((), "same", False, WHY),  # A version before recorded none.
        (WHY, "same", False, ("everything is decided as before (`-v` explains it)",)),
        (WHY[1:], "update", False, (WHY[0], "the rest is decided as before (`-v` explains it)")),
        (WHY[1:], "same", False, ("everything is decided as before (`-v` explains it)",)),
        (WHY, "update", True, WHY),
        (WHY, "same", True, WHY),
    ],
)
def test_explanations_are_those_that_the_last_up_did_not_have(
    former: tuple[str, ...], op: Any, verbose: bool, shown: tuple[str, ...]
) -> None:
    change = Change(op, "aws:ec2/instance:Instance", "p5-0", "urn:p5-0")
    plan = Plan("p5", "p5", (change,), WHY, hourly=1.0, delta=0.0, former_reasons=frozenset(former))
    assert reason_lines(plan, colour=False, verbose=verbose) == [f"  · {line}" for line in shown]
