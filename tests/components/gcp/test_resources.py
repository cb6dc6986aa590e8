"""Plans registered with the real SDK: what is registered, counted and marked. No cloud, no engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pulumi
import pulumi.runtime
import pytest
import yaml
from kit.clouds import cloudconfig
from kit.clouds.gcp_cases import Case
from kit.engine.registering import registered
from pulumi.runtime import rpc

from orch.components.cloud.machines.host_keys import public_host_key
from orch.components.gcp.account.facts import Member
from orch.components.gcp.plan import GcpPlan
from orch.spec.state import FleetState

SECRET = rpc._special_secret_sig
PLANNED = Case.planned()
UNLABELLED = {
    "gcp:compute/network:Network",
    "gcp:compute/subnetwork:Subnetwork",
    "gcp:compute/firewall:Firewall",
    "gcp:compute/router:Router",
    "gcp:compute/resourcePolicy:ResourcePolicy",
    "gcp:compute/instanceGroupManager:InstanceGroupManager",
}


class Registered(pulumi.runtime.Mocks):
    """Keeps what is registered; gives ids and addresses as a cloud would."""

    def __init__(self, former: frozenset[str] = frozenset()) -> None:
        self.former = former
        self.resources: list[tuple[str, str, dict[str, Any]]] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        self.resources.append((args.typ, args.name, args.inputs))
        more: dict[str, Any] = {}
        if args.typ == "orch:index:Keys":
            more = {"clientPrivateKey": "private", "client_private_key": "private"}
            more |= {"client_public_key": "ssh-ed25519 AAAA me", "host_seed": "ab" * 32}
        if "compute/instance" in args.typ:
            nic = {"networkIp": f"10.0.0.{10 + len(self.resources)}"}
            nic["accessConfigs"] = [{"natIp": "203.0.113.7"}]  # type: ignore[assignment]
            more |= {
                "networkInterfaces": [nic],
                "instanceId": args.name,
                "selfLinkUnique": f"link/{args.name}",
            }
        if args.name in self.former:
            more["metadata"] = {"user-data": "ssh_keys:\n  ed25519_private: |\n    secret"}
        return f"{args.name}-id", {**args.inputs, **more}

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        raise AssertionError(f"{args.token} is asked inside the program")

    def of(self, typ: str) -> list[tuple[str, dict[str, Any]]]:
        """By name: they are registered in any order."""
        found = [(name, inputs) for each, name, inputs in self.resources if each == f"gcp:compute/{typ}"]
        return sorted(found, key=lambda each: each[0])


NODE = "instanceFromTemplate:InstanceFromTemplate"


def register(
    case: Case,
    plan: GcpPlan | None = None,
    *,
    former: frozenset[str] = frozenset(),
    silent: frozenset[str] = frozenset(),
    asked: list[str] | None = None,
) -> tuple[Registered, FleetState]:
    """Everything of a case, registered, and the state a runner gets.

    `former`: nodes that an earlier version made, with user data of their own, and members of a group that it
    made; `silent`: instances that never show a key; `asked`: filled with those whose keys are read.
    """
    from orch.components.gcp.resources import GcpFleet

    kept, states = Registered(former), list[Any]()
    made = plan or case.plan()

    def members(group: str, count: int) -> list[Member]:
        names = [f"{made.base}-{node.index}" for node in made.nodes]
        assert len(names) == count
        return [
            Member(
                name,
                f"10.0.1.{place}",
                None,
                f"2026-01-0{place % 9 + 1}",
                ("b1", f"s{place % 2}", name),
                id=f"{name}-number",
                keyed=name in former,
            )
            for place, name in enumerate(names)
        ]

    def shown(names: Sequence[str]) -> dict[str, str]:
        if asked is not None:
            asked.extend(names)
        return {each: f"ssh-ed25519 {each}" for each in names if each not in silent}

    def run() -> pulumi.Output[Any]:
        return GcpFleet(made, case.settings, shown, members).state.apply(states.append)

    registered(kept, run)
    return kept, FleetState.model_validate(states[0])


@cache
def of_case(name: str) -> tuple[Registered, FleetState]:
    """What `register` gives of a case alone, for all who only look at it."""
    return register(Case.of(name))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PLANNED)
def test_each_case_registers_what_its_plan_says(name: str) -> None:
    plan = Case.of(name).plan()
    kept, state = of_case(name)
    assert [node.name for node in state.nodes] == [node.name for node in plan.nodes]
    alone = [] if plan.group else sorted(node.name for node in plan.nodes)
    assert [name for name, _ in kept.of(NODE)] == alone
    (template,) = kept.of("instanceTemplate:InstanceTemplate")
    assert len(template[1]["networkInterfaces"]) == len(plan.interfaces)
    made = [vpc for vpc in plan.networks.vpcs if vpc.origin == "made"]
    assert len(kept.of("network:Network")) == len(made)
    assert len(kept.of("subnetwork:Subnetwork")) == sum(len(vpc.subnets) for vpc in made)
    locks = plan.file_systems if plan.networks.first.origin != "given" else ()
    assert len(kept.of("firewall:Firewall")) == len(plan.networks.firewalls) + len(locks)
    assert len(kept.of("routerNat:RouterNat")) == (plan.networks.nat is not None)
    assert len(kept.of("resourcePolicy:ResourcePolicy")) == (plan.placement_policy is not None)
    assert len(kept.of("instance:Instance")) == (plan.bastion is not None)


def test_sixteen_nodes_add_sixteen_resources() -> None:
    case = Case.of("a3-mega")
    counts = [len(register(Case("x", _with(case, nodes)))[0].resources) for nodes in (1, 17)]
    assert counts[1] - counts[0] == 16


def _with(case: Case, nodes: int) -> dict[str, Any]:
    return {**case.data, "fleet": {**case.data["fleet"], "nodes": nodes}}


def test_all_that_is_made_can_be_found_again() -> None:
    lost = Counter[str]()
    for name in ("a3-mega", "a4x-max", "flex-start"):
        for typ, _, inputs in of_case(name)[0].resources:
            if not typ.startswith("gcp:"):
                continue
            words = inputs.get("description", "") if typ in UNLABELLED else inputs.get("labels", {})
            lost[typ] += ("orch:urn=" if typ in UNLABELLED else "orch-urn") not in words
    assert {typ for typ, count in lost.items() if count} == {
        "gcp:compute/routerNat:RouterNat",  # a part of its router
        "gcp:compute/resizeRequest:ResizeRequest",  # a part of its group
    }


def test_labels_are_what_gcp_takes() -> None:
    for name in ("a3-mega", "flex-start", "open-to-the-world"):
        for _, _, inputs in of_case(name)[0].resources:
            for key, value in inputs.get("labels", {}).items():
                assert key == key.lower()
                assert value == value.lower()
                assert max(len(key), len(value)) <= 63


def test_names_fit_whatever_the_fleet_is_called() -> None:
    case = Case.of("a3-mega")
    long = Case("x", {**case.data, "fleet": {**case.data["fleet"], "name": "a" + "-very-long" * 4}})
    names = [
        inputs["name"] for typ, _, inputs in register(long)[0].resources if typ.startswith("gcp:compute")
    ]
    assert max(len(name) for name in names) <= 63


def test_the_rdma_network_has_the_profile_of_its_zone() -> None:
    kept, _ = of_case("a3-ultra")
    profiles = [inputs.get("networkProfile") for _, inputs in kept.of("network:Network")]
    assert profiles == [None, None, "projects/acme-ml/global/networkProfiles/us-central1-b-vpc-roce"]


def common(kept: Registered) -> Any:
    """The metadata of the nodes."""
    (template,) = kept.of("instanceTemplate:InstanceTemplate")
    return template[1]["metadata"]


def test_all_nodes_start_with_one_text_that_holds_no_secret() -> None:
    kept, state = of_case("a3-mega")
    metadata = common(kept)
    assert metadata["enable-guest-attributes"] == "TRUE"
    text = cloudconfig.unwrapped(metadata["user-data"])
    assert text.startswith("#cloud-config\n")
    assert "@@" not in text.replace("Marks in @@", "")
    assert "PRIVATE KEY" not in text
    assert yaml.safe_load(text)["users"][0]["ssh_authorized_keys"] == ["ssh-ed25519 AAAA me"]
    for node in state.nodes:
        inputs = dict(kept.of(NODE))[node.name]
        assert "metadata" not in inputs
        assert SECRET not in json.dumps(inputs)


def test_user_data_with_steps_of_the_file_is_a_secret() -> None:
    assert SECRET in common(of_case("scripts")[0]).values()


def shown_keys(state: FleetState) -> list[tuple[str | None, str]]:
    return [(node.machine, node.ssh.host_key) for node in state.nodes]


@pytest.mark.parametrize("name", ["a3-mega", "flex-start-grown"])
def test_a_host_key_is_read_once_from_each_instance(name: str) -> None:
    case, asked = Case.of(name), list[str]()
    _, state = register(case, asked=asked)
    assert [node.ssh.host_key for node in state.nodes] == [f"ssh-ed25519 {each}" for each in asked]
    assert len(set(asked)) == len(state.nodes)
    known = {node.name: (str(node.machine), node.ssh.host_key) for node in state.nodes}
    again = list[str]()
    _, later = register(case, replace(case.plan(), host_keys=known), asked=again)
    assert (again, shown_keys(later)) == ([], shown_keys(state))
    # An instance that came in the place of another is asked anew.
    other = dict.fromkeys(known, ("another", "ssh-ed25519 other"))
    _, fresh = register(case, replace(case.plan(), host_keys=other), asked=again)
    assert (again, shown_keys(fresh)) == (asked, shown_keys(state))


def test_nodes_of_an_earlier_version_keep_the_keys_they_were_given() -> None:
    case, asked = Case.of("a3-mega"), list[str]()
    first, *others = case.plan().nodes
    _, state = register(case, former=frozenset({first.name}), asked=asked)
    assert (state.nodes[0].machine, state.nodes[0].ssh.host_key) == (
        None,
        public_host_key("ab" * 32, first.name),
    )
    assert asked == [f"{case.plan().base}-{node.index}" for node in others]


def test_a_group_of_an_earlier_version_keeps_the_key_that_its_members_share() -> None:
    case, asked = Case.of("flex-start-grown"), list[str]()
    old = [f"{case.plan().base}-{node.index}" for node in case.plan().nodes[:8]]
    _, state = register(case, former=frozenset(old), asked=asked)
    shared = public_host_key("ab" * 32, f"{state.name}-group")
    assert [node.ssh.host_key == shared for node in state.nodes] == [True] * 8 + [False] * 4
    assert len(asked) == 4


def test_a_node_that_never_comes_up_is_none_and_the_others_are() -> None:
    case = Case.of("a3-mega")
    plan = case.plan()
    _, state = register(case, silent=frozenset({f"{plan.base}-1"}))
    assert [node.index for node in state.nodes] == [node.index for node in plan.nodes if node.index != 1]
    assert {node.ssh.host_key for node in state.nodes} == {
        f"ssh-ed25519 {plan.base}-{i.index}" for i in state.nodes
    }


def test_nodes_are_reached_over_the_bastion_through_iap() -> None:
    _, state = of_case("a3-mega")
    jump = state.nodes[0].ssh.jump[0]
    assert jump.proxy_command is not None
    assert jump.proxy_command.startswith("gcloud compute start-iap-tunnel orch-train-abc123-bastion 22 ")
    assert state.nodes[0].ssh.proxy_command is None


def test_a_lone_private_node_is_reached_through_iap_itself() -> None:
    _, state = of_case("cpu-smallest")
    assert state.nodes[0].ssh.proxy_command is not None
    assert not state.nodes[0].ssh.jump


def test_public_nodes_are_reached_straight() -> None:
    _, state = of_case("cpu")
    assert {node.ssh.address for node in state.nodes} == {"203.0.113.7"}


def test_ranks_follow_the_physical_host() -> None:
    _, state = of_case("a3-ultra")
    assert [node.topology[:2] for node in state.nodes] == [("b1", f"s{place % 2}") for place in range(4)]
    _, plain = of_case("cpu")
    assert {node.topology for node in plain.nodes} == {()}


def test_a_queue_is_one_group_and_a_request_per_batch() -> None:
    kept, state = of_case("flex-start-grown")
    requests = kept.of("resizeRequest:ResizeRequest")
    assert [inputs["resizeBy"] for _, inputs in requests] == [8, 4]
    assert [inputs["requestedRunDuration"]["seconds"] for _, inputs in requests] == ["172800"] * 2
    (group,) = kept.of("instanceGroupManager:InstanceGroupManager")
    assert group[1]["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
    assert len({node.ssh.host_key for node in state.nodes}) == 12  # what members have in common holds no key
    assert len({node.ssh.address for node in state.nodes}) == 12


def test_spot_nodes_that_are_taken_leave_nothing() -> None:
    (template,) = of_case("spot")[0].of("instanceTemplate:InstanceTemplate")
    assert template[1]["scheduling"] == {
        "provisioningModel": "SPOT",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "preemptible": True,
        "instanceTerminationAction": "DELETE",
    }


def test_without_ssh_networks_no_rule_lets_the_world_in() -> None:
    kept, _ = of_case("a3-mega")
    ranges = [each for _, inputs in kept.of("firewall:Firewall") for each in inputs.get("sourceRanges", ())]
    assert ranges
    assert not [each for each in ranges if not each.startswith("10.") and each != "35.235.240.0/20"]


def test_shared_networks_are_a_stack_of_their_own() -> None:
    from orch.components.gcp.network_resources import GcpNetworks

    case = Case.of("shared")
    plan = case.plan()
    assert plan.shared is not None
    fleet, _ = register(case, plan)
    assert fleet.of("network:Network") == []
    kept, shared = Registered(), plan.shared

    def run() -> pulumi.Output[Any]:
        return GcpNetworks(shared, plan.project, "abc123", case.settings).urn

    registered(kept, run, stack="net")
    made = {inputs["name"] for _, inputs in kept.of("subnetwork:Subnetwork")}
    assert made == {each.subnet for each in plan.interfaces}
    assert len(kept.of("routerNat:RouterNat")) == 1


def test_nodes_have_no_account_unless_one_is_named() -> None:
    template = "instanceTemplate:InstanceTemplate"
    for name in ("cpu", "a3-mega", "flex-start"):
        ((_, inputs),) = of_case(name)[0].of(template)
        assert "serviceAccount" not in inputs
    ((_, inputs),) = of_case("given-by-the-backend")[0].of(template)
    assert inputs["serviceAccount"]["email"] == "nodes@acme-ml.iam.gserviceaccount.com"
