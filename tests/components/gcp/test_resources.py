"""Plans registered with the real SDK: what is registered, counted and marked. No cloud, no engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pulumi
import pulumi.runtime
import pytest
import yaml
from gcp_cases import Case, cases

from orch.components.gcp.account.facts import Member
from orch.components.gcp.plan import GcpPlan
from orch.spec.state import FleetState

PLANNED = [name for name in cases() if not name.startswith("bad-")]
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

    def __init__(self) -> None:
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
        return f"{args.name}-id", {**args.inputs, **more}

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        raise AssertionError(f"{args.token} is asked inside the program")

    def of(self, typ: str) -> list[tuple[str, dict[str, Any]]]:
        """By name: they are registered in any order."""
        found = [(name, inputs) for each, name, inputs in self.resources if each == f"gcp:compute/{typ}"]
        return sorted(found, key=lambda each: each[0])


NODE = "instanceFromTemplate:InstanceFromTemplate"


def register(case: Case, plan: GcpPlan | None = None) -> tuple[Registered, FleetState]:
    """Everything of a case, registered, and the state a runner gets."""
    from orch.components.gcp.resources import GcpFleet

    asyncio.set_event_loop(asyncio.new_event_loop())
    kept, states = Registered(), list[Any]()
    pulumi.runtime.set_mocks(kept, project="tests", stack="lab")
    made = plan or case.plan()

    def members(group: str, count: int) -> list[Member]:
        names = [f"{made.base}-{node.index}" for node in made.nodes]
        assert len(names) == count
        return [
            Member(name, f"10.0.1.{place}", None, f"2026-01-0{place % 9 + 1}", ("b1", f"s{place % 2}", name))
            for place, name in enumerate(names)
        ]

    @pulumi.runtime.test
    def run() -> pulumi.Output[Any]:
        return GcpFleet(made, case.settings, members).state.apply(states.append)

    run()
    return kept, FleetState.model_validate(states[0])


@pytest.mark.parametrize("name", PLANNED)
def test_each_case_registers_what_its_plan_says(name: str) -> None:
    case = Case.of(name)
    plan = case.plan()
    kept, state = register(case, plan)
    assert [node.name for node in state.nodes] == [node.name for node in plan.nodes]
    alone = [] if plan.group else sorted(node.name for node in plan.nodes)
    assert [name for name, _ in kept.of(NODE)] == alone
    (template,) = kept.of("instanceTemplate:InstanceTemplate")
    assert len(template[1]["networkInterfaces"]) == len(plan.interfaces)
    made = [vpc for vpc in plan.networks.vpcs if vpc.origin == "made"]
    assert len(kept.of("network:Network")) == len(made)
    assert len(kept.of("subnetwork:Subnetwork")) == sum(len(vpc.subnets) for vpc in made)
    assert len(kept.of("firewall:Firewall")) == len(plan.networks.firewalls)
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
        for typ, _, inputs in register(Case.of(name))[0].resources:
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
        for _, _, inputs in register(Case.of(name))[0].resources:
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
    kept, _ = register(Case.of("a3-ultra"))
    profiles = [inputs.get("networkProfile") for _, inputs in kept.of("network:Network")]
    assert profiles == [None, None, "projects/acme-ml/global/networkProfiles/us-central1-b-vpc-roce"]


def test_user_data_is_a_cloud_config_with_the_nodes_own_keys() -> None:
    kept, state = register(Case.of("a3-mega"))
    for node in state.nodes:
        secret = dict(kept.of(NODE))[node.name]["metadata"]  # secrets travel in an envelope
        text = secret["value"]["user-data"]
        assert "@@" not in text.replace("Marks in @@", "")
        config = yaml.safe_load(text)
        assert config["hostname"] == node.name
        assert config["ssh_keys"]["ed25519_public"] == node.ssh.host_key
        assert config["users"][0]["ssh_authorized_keys"] == ["ssh-ed25519 AAAA me"]


def test_nodes_are_reached_over_the_bastion_through_iap() -> None:
    _, state = register(Case.of("a3-mega"))
    jump = state.nodes[0].ssh.jump[0]
    assert jump.proxy_command is not None
    assert jump.proxy_command.startswith("gcloud compute start-iap-tunnel orch-train-abc123-bastion 22 ")
    assert state.nodes[0].ssh.proxy_command is None


def test_a_lone_private_node_is_reached_through_iap_itself() -> None:
    _, state = register(Case.of("cpu-smallest"))
    assert state.nodes[0].ssh.proxy_command is not None
    assert not state.nodes[0].ssh.jump


def test_public_nodes_are_reached_straight() -> None:
    _, state = register(Case.of("cpu"))
    assert {node.ssh.address for node in state.nodes} == {"203.0.113.7"}


def test_ranks_follow_the_physical_host() -> None:
    _, state = register(Case.of("a3-ultra"))
    assert [node.topology[:2] for node in state.nodes] == [("b1", f"s{place % 2}") for place in range(4)]
    _, plain = register(Case.of("cpu"))
    assert {node.topology for node in plain.nodes} == {()}


def test_a_queue_is_one_group_and_a_request_per_batch() -> None:
    kept, state = register(Case.of("flex-start-grown"))
    requests = kept.of("resizeRequest:ResizeRequest")
    assert [inputs["resizeBy"] for _, inputs in requests] == [8, 4]
    assert [inputs["requestedRunDuration"]["seconds"] for _, inputs in requests] == ["172800"] * 2
    (group,) = kept.of("instanceGroupManager:InstanceGroupManager")
    assert group[1]["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
    assert len({node.ssh.host_key for node in state.nodes}) == 1  # members have their template in common
    assert len({node.ssh.address for node in state.nodes}) == 12


def test_spot_nodes_that_are_taken_leave_nothing() -> None:
    (template,) = register(Case.of("spot"))[0].of("instanceTemplate:InstanceTemplate")
    assert template[1]["scheduling"] == {
        "provisioningModel": "SPOT",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "preemptible": True,
        "instanceTerminationAction": "DELETE",
    }


def test_without_ssh_networks_no_rule_lets_the_world_in() -> None:
    kept, _ = register(Case.of("a3-mega"))
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
    asyncio.set_event_loop(asyncio.new_event_loop())
    kept = Registered()
    pulumi.runtime.set_mocks(kept, project="tests", stack="net")
    shared = plan.shared

    @pulumi.runtime.test
    def run() -> None:
        GcpNetworks(shared, plan.project, "abc123", case.settings)

    run()
    made = {inputs["name"] for _, inputs in kept.of("subnetwork:Subnetwork")}
    assert made == {each.subnet for each in plan.interfaces}
    assert len(kept.of("routerNat:RouterNat")) == 1


def test_nodes_have_no_account_unless_one_is_named() -> None:
    template = "instanceTemplate:InstanceTemplate"
    for name in ("cpu", "a3-mega", "flex-start"):
        ((_, inputs),) = register(Case.of(name))[0].of(template)
        assert "serviceAccount" not in inputs
    ((_, inputs),) = register(Case.of("given-by-the-backend"))[0].of(template)
    assert inputs["serviceAccount"]["email"] == "nodes@acme-ml.iam.gserviceaccount.com"
