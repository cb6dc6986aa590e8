"""Plans registered with the real SDK: what is registered, counted and tagged. No cloud, no engine."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64decode
from collections import Counter
from typing import Any

import pulumi
import pulumi.runtime
import pytest
import yaml
from aws_cases import Case, cases

from orch.components.aws.plan import AwsPlan
from orch.spec.state import FleetState


class Registered(pulumi.runtime.Mocks):
    """Keeps what is registered; gives ids and addresses as a cloud would."""

    def __init__(self) -> None:
        self.resources: list[tuple[str, str, dict[str, Any]]] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        self.resources.append((args.typ, args.name, args.inputs))
        more: dict[str, Any] = {"arn": f"arn:{args.name}", "latestVersion": 1}
        if args.typ == "orch:index:Keys":
            more = {"clientPrivateKey": "private", "client_private_key": "private"}
            more |= {"client_public_key": "ssh-ed25519 AAAA me", "host_seed": "ab" * 32}
        if args.typ == "aws:ec2/instance:Instance":
            more |= {"privateIp": f"10.0.0.{10 + len(self.resources)}", "publicIp": "203.0.113.7"}
            more |= {"primaryNetworkInterfaceId": f"eni-{args.name}"}
        if args.typ == "aws:ec2/eip:Eip":
            more |= {"publicIp": "203.0.113.9"}
        return f"{args.name}-id", {**args.inputs, **more}

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"{args.token} is asked inside the program")

    def of(self, typ: str) -> list[tuple[str, dict[str, Any]]]:
        return [(name, inputs) for each, name, inputs in self.resources if each.startswith(typ)]


def register(case: Case, plan: AwsPlan | None = None) -> tuple[Registered, FleetState]:
    """Everything of a case, registered, and the state a runner gets."""
    from orch.components.aws.resources import AwsFleet

    asyncio.set_event_loop(asyncio.new_event_loop())
    kept, states = Registered(), list[Any]()
    pulumi.runtime.set_mocks(kept, project="tests", stack="lab")

    @pulumi.runtime.test
    def run() -> pulumi.Output[Any]:
        fleet = AwsFleet(
            plan or case.plan(), case.settings, lambda ids: {each: ("nn-1", each) for each in ids}
        )
        return fleet.state.apply(states.append)

    run()
    return kept, FleetState.model_validate(states[0])


@pytest.mark.parametrize("name", [name for name in cases() if not name.startswith("bad-")])
def test_each_case_registers_what_its_plan_says(name: str) -> None:
    case = Case.of(name)
    plan = case.plan()
    kept, state = register(case, plan)
    nodes = dict(kept.of("aws:ec2/instance:Instance"))
    assert [node.name for node in state.nodes] == [node.name for node in plan.nodes]
    assert set(nodes) == {node.name for node in plan.nodes} | (
        {f"{plan.fleet}-bastion"} if plan.bastion else set()
    )
    (template,) = kept.of("aws:ec2/launchTemplate:LaunchTemplate")
    assert len(template[1]["networkInterfaces"]) == len(plan.interfaces)
    assert len(kept.of("aws:ec2/capacityReservation:")) == (plan.capacity.made is not None)
    assert len(kept.of("aws:ec2/placementGroup:")) == (plan.group is not None and plan.group.made)


def test_sixteen_nodes_add_sixteen_resources() -> None:
    case = Case.of("p5")
    counts = [len(register(Case("x", _with(case, nodes)))[0].resources) for nodes in (1, 17)]
    assert counts[1] - counts[0] == 16


def _with(case: Case, nodes: int) -> dict[str, Any]:
    return {**case.data, "fleet": {**case.data["fleet"], "nodes": nodes}}


def test_all_that_takes_tags_can_be_found_again() -> None:
    kept, _ = register(Case.of("given-network"))
    kept_too, _ = register(Case.of("p5"))
    untagged = Counter(
        typ
        for typ, _, inputs in [*kept.resources, *kept_too.resources]
        if typ.startswith("aws:") and "orch:urn" not in inputs.get("tags", {})
    )
    assert set(untagged) == {
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "aws:iam/rolePolicy:RolePolicy",
    }


def test_user_data_is_a_cloud_config_with_the_nodes_own_keys() -> None:
    kept, state = register(Case.of("p5"))
    for node in state.nodes:
        inputs = dict(kept.of("aws:ec2/instance:Instance"))[node.name]
        secret = inputs["userDataBase64"]  # secrets travel in an envelope
        text = gzip.decompress(b64decode(secret["value"])).decode()
        assert text.startswith("#cloud-config\n")
        assert "@@" not in text.replace("Marks in @@", "")
        config = yaml.safe_load(text)
        assert config["hostname"] == node.name
        assert config["ssh_keys"]["ed25519_public"] == node.host_key
        assert config["ssh_keys"]["ed25519_private"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
        assert config["users"][0]["ssh_authorized_keys"] == ["ssh-ed25519 AAAA me"]


def test_nodes_are_reached_over_the_bastion_through_ssm() -> None:
    _, state = register(Case.of("p5"))
    jump = state.nodes[0].jump[0]
    assert jump.proxy_command is not None
    assert jump.proxy_command.startswith("aws ssm start-session --region us-east-1 --target train-bastion-id")
    assert state.nodes[0].proxy_command is None


def test_ranks_follow_what_the_cloud_tells_of_the_network() -> None:
    _, state = register(Case.of("p5"))
    assert [node.topology for node in state.nodes] == [("nn-1", f"train-{i}-id") for i in range(4)]
    _, plain = register(Case.of("g5"))
    assert {node.topology for node in plain.nodes} == {()}


def test_public_nodes_are_reached_straight_at_their_elastic_ips() -> None:
    kept, state = register(Case.of("public-ips"))
    assert {node.address for node in state.nodes} == {"203.0.113.9"}
    assert len(kept.of("aws:ec2/eip:Eip")) == 2
    assert all(not node.jump for node in state.nodes)


def test_without_ssh_networks_no_rule_lets_the_world_in() -> None:
    kept, _ = register(Case.of("p5"))
    rules = [rule for _, inputs in kept.of("aws:ec2/securityGroup:") for rule in inputs.get("ingress", ())]
    assert rules
    assert not [rule for rule in rules if rule.get("cidrBlocks")]


def test_what_leads_ssm_in_may_do_nothing_else() -> None:
    kept, _ = register(Case.of("p5"))
    assert not kept.of("aws:iam/rolePolicyAttachment:")
    ((_, policy),) = kept.of("aws:iam/rolePolicy:")
    (allowed,) = json.loads(policy["policy"])["Statement"]
    assert {action.partition(":")[0] for action in allowed["Action"]} == {"ssm", "ssmmessages"}
    assert [action for action in allowed["Action"] if action.startswith("ssm:")] == [
        "ssm:UpdateInstanceInformation"
    ]


def test_the_bastion_s_disk_is_encrypted() -> None:
    kept, _ = register(Case.of("p5"))
    assert dict(kept.of("aws:ec2/instance:Instance"))["train-bastion"]["rootBlockDevice"] == {
        "encrypted": True
    }
