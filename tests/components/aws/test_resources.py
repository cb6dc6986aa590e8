"""Plans registered with the real SDK: what is registered, counted and tagged. No cloud, no engine."""

from __future__ import annotations

import email
import gzip
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pulumi
import pulumi.runtime
import pytest
import yaml
from kit.clouds.aws_cases import Case
from kit.engine.registering import registered
from pulumi.runtime import rpc

from orch.components.aws.plan import AwsPlan
from orch.components.cloud.machines.host_keys import public_host_key
from orch.spec.state import FleetState

SECRET = rpc._special_secret_sig


class Registered(pulumi.runtime.Mocks):
    """Keeps what is registered; gives ids and addresses as a cloud would."""

    def __init__(self, former: frozenset[str] = frozenset()) -> None:
        self.resources: list[tuple[str, str, dict[str, Any]]] = []
        self.former = former

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        self.resources.append((args.typ, args.name, args.inputs))
        more: dict[str, Any] = {"arn": f"arn:{args.name}", "latestVersion": 1}
        if args.typ == "orch:index:Keys":
            more = {"clientPrivateKey": "private", "client_private_key": "private"}
            more |= {"client_public_key": "ssh-ed25519 AAAA me", "host_seed": "ab" * 32}
        if args.typ == "aws:ec2/instance:Instance":
            more |= {"privateIp": f"10.0.0.{10 + len(self.resources)}", "publicIp": "203.0.113.7"}
            more |= {"primaryNetworkInterfaceId": f"eni-{args.name}"}
            more |= {"userDataBase64": "own"} if args.name in self.former else {}
        if args.typ == "aws:ec2/eip:Eip":
            more |= {"publicIp": "203.0.113.9"}
        return f"{args.name}-id", {**args.inputs, **more}

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"{args.token} is asked inside the program")

    def of(self, typ: str) -> list[tuple[str, dict[str, Any]]]:
        return [(name, inputs) for each, name, inputs in self.resources if each.startswith(typ)]


def register(
    case: Case,
    plan: AwsPlan | None = None,
    *,
    former: frozenset[str] = frozenset(),
    asked: list[str] | None = None,
) -> tuple[Registered, FleetState]:
    """Everything of a case, registered, and the state a runner gets.

    `former`: nodes that an earlier version made, with user data of their own; `asked`: filled with the
    instances whose consoles are read.
    """
    from orch.components.aws.resources import AwsFleet

    kept, states = Registered(former), list[Any]()

    def shown(ids: Sequence[str]) -> dict[str, str]:
        if asked is not None:
            asked.extend(ids)
        return {each: f"ssh-ed25519 {each}" for each in ids}

    def run() -> pulumi.Output[Any]:
        fleet = AwsFleet(
            plan or case.plan(), case.settings, shown, lambda ids: {each: ("nn-1", each) for each in ids}
        )
        return fleet.state.apply(states.append)

    registered(kept, run)
    return kept, FleetState.model_validate(states[0])


@cache
def of_case(name: str) -> tuple[Registered, FleetState]:
    """What `register` gives of a case alone, for all who only look at it."""
    return register(Case.of(name))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", Case.planned())
def test_each_case_registers_what_its_plan_says(name: str) -> None:
    plan = Case.of(name).plan()
    kept, state = of_case(name)
    nodes = dict(kept.of("aws:ec2/instance:Instance"))
    assert [node.name for node in state.nodes] == [node.name for node in plan.nodes]
    assert set(nodes) == {node.name for node in plan.nodes} | (
        {f"{plan.fleet}-bastion"} if plan.bastion else set()
    )
    (template,) = kept.of("aws:ec2/launchTemplate:LaunchTemplate")
    assert len(template[1]["networkInterfaces"]) == len(plan.interfaces)
    assert len(kept.of("aws:ec2/capacityReservation:")) == (plan.capacity.reserved_nodes is not None)
    assert len(kept.of("aws:ec2/placementGroup:")) == (plan.group is not None and plan.group.new)


def test_sixteen_nodes_add_sixteen_resources() -> None:
    case = Case.of("p5")
    counts = [len(register(Case("x", _with(case, nodes)))[0].resources) for nodes in (1, 17)]
    assert counts[1] - counts[0] == 16


def _with(case: Case, nodes: int) -> dict[str, Any]:
    return {**case.data, "fleet": {**case.data["fleet"], "nodes": nodes}}


def test_all_that_takes_tags_can_be_found_again() -> None:
    kept, _ = of_case("given-network")
    kept_too, _ = of_case("p5")
    untagged = Counter(
        typ
        for typ, _, inputs in [*kept.resources, *kept_too.resources]
        if typ.startswith("aws:") and "orch:urn" not in inputs.get("tags", {})
    )
    assert set(untagged) == {
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "aws:iam/rolePolicy:RolePolicy",
    }


def common(kept: Registered) -> str:
    """The user data of the nodes."""
    (template,) = kept.of("aws:ec2/launchTemplate:LaunchTemplate")
    return b64decode(template[1]["userData"]).decode()


def test_all_nodes_start_with_one_text_that_holds_no_secret() -> None:
    kept, state = of_case("p5")
    (part,) = email.message_from_string(common(kept)).get_payload()
    text = gzip.decompress(part.get_payload(decode=True)).decode()
    assert text.startswith("#cloud-config\n")
    assert "@@" not in text.replace("Marks in @@", "")
    assert yaml.safe_load(text)["users"][0]["ssh_authorized_keys"] == ["ssh-ed25519 AAAA me"]
    for node in state.nodes:
        inputs = dict(kept.of("aws:ec2/instance:Instance"))[node.name]
        assert not {"userData", "userDataBase64"} & set(inputs)
        assert "[secret]" not in json.dumps(inputs)
        assert SECRET not in json.dumps(inputs)


def test_user_data_with_steps_of_the_file_is_a_secret() -> None:
    kept, _ = of_case("scripts")
    (template,) = kept.of("aws:ec2/launchTemplate:LaunchTemplate")
    assert SECRET in template[1]["userData"].values()


def test_a_host_key_is_read_from_the_console_once() -> None:
    case, asked = Case.of("p5"), list[str]()
    _, state = register(case, asked=asked)
    assert asked == [f"{node.name}-id" for node in state.nodes]
    assert [node.ssh.host_key for node in state.nodes] == [
        f"ssh-ed25519 {node.name}-id" for node in state.nodes
    ]
    known = {node.name: (str(node.machine), node.ssh.host_key) for node in state.nodes}
    again = list[str]()
    _, later = register(case, replace(case.plan(), host_keys=known), asked=again)
    assert (again, shown_keys(later)) == ([], shown_keys(state))
    other = dict.fromkeys(known, ("another", "ssh-ed25519 other"))
    _, fresh = register(case, replace(case.plan(), host_keys=other), asked=again)
    assert (len(again), shown_keys(fresh)) == (len(known), shown_keys(state))


def shown_keys(state: FleetState) -> list[tuple[str | None, str]]:
    return [(node.machine, node.ssh.host_key) for node in state.nodes]


def test_nodes_of_an_earlier_version_keep_the_keys_they_were_given() -> None:
    case, asked = Case.of("p5"), list[str]()
    first, *others = [node.name for node in case.plan().nodes]
    _, state = register(case, former=frozenset({first}), asked=asked)
    assert state.nodes[0].ssh.host_key == public_host_key("ab" * 32, first)
    assert state.nodes[0].machine is None
    assert asked == [f"{name}-id" for name in others]


def test_instances_read_their_names_where_their_tags_can_be_paths() -> None:
    case = Case.of("p5")
    (template,) = register(case)[0].of("aws:ec2/launchTemplate:LaunchTemplate")
    assert template[1]["metadataOptions"]["instanceMetadataTags"] == "enabled"
    case.data["fleet"]["tags"] = {"_index": "7"}
    (template,) = register(case)[0].of("aws:ec2/launchTemplate:LaunchTemplate")
    assert "instanceMetadataTags" not in template[1]["metadataOptions"]


def test_nodes_are_reached_over_the_bastion_through_ssm() -> None:
    _, state = of_case("p5")
    jump = state.nodes[0].ssh.jump[0]
    assert jump.proxy_command is not None
    assert jump.proxy_command.startswith("aws ssm start-session --region us-east-1 --target train-bastion-id")
    assert state.nodes[0].ssh.proxy_command is None


def test_ranks_follow_what_the_cloud_tells_of_the_network() -> None:
    _, state = of_case("p5")
    assert [node.topology for node in state.nodes] == [("nn-1", f"train-{i}-id") for i in range(4)]
    _, plain = of_case("g5")
    assert {node.topology for node in plain.nodes} == {()}


def test_public_nodes_are_reached_straight_at_their_elastic_ips() -> None:
    kept, state = of_case("public-ips")
    assert {node.ssh.address for node in state.nodes} == {"203.0.113.9"}
    assert len(kept.of("aws:ec2/eip:Eip")) == 2
    assert all(not node.ssh.jump for node in state.nodes)


def test_without_ssh_networks_no_rule_lets_the_world_in() -> None:
    kept, _ = of_case("p5")
    rules = [rule for _, inputs in kept.of("aws:ec2/securityGroup:") for rule in inputs.get("ingress", ())]
    assert rules
    assert not [rule for rule in rules if rule.get("cidrBlocks")]


def test_what_leads_ssm_in_may_do_nothing_else() -> None:
    kept, _ = of_case("p5")
    assert not kept.of("aws:iam/rolePolicyAttachment:")
    ((_, policy),) = kept.of("aws:iam/rolePolicy:")
    (allowed,) = json.loads(policy["policy"])["Statement"]
    assert {action.partition(":")[0] for action in allowed["Action"]} == {"ssm", "ssmmessages"}
    assert [action for action in allowed["Action"] if action.startswith("ssm:")] == [
        "ssm:UpdateInstanceInformation"
    ]


def test_the_bastion_s_disk_is_encrypted() -> None:
    kept, _ = of_case("p5")
    assert dict(kept.of("aws:ec2/instance:Instance"))["train-bastion"]["rootBlockDevice"] == {
        "encrypted": True
    }
