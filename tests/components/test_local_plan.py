"""What a local fleet becomes, decided without Docker."""

from __future__ import annotations

from typing import Any

import pytest

from orch.components.cloud.machines.host_keys import host_key_seed, public_host_key
from orch.components.local.facts import LocalFacts
from orch.components.local.plan import MAX_NODES, LocalPlan, plan
from orch.components.local.resources import nth_address
from orch.components.request import PriorState
from orch.spec.access import SshAccess
from orch.spec.findings import PlanError
from orch.spec.models import Fleet
from orch.spec.state import NodeState

FACTS = LocalFacts(cpus=4, memory_mib=8192, node_image="orch/node:new")


def fleet(**more: Any) -> Fleet:
    return Fleet.model_validate({"type": "fleet", "name": "lab", "backend": "local", "nodes": "2", **more})


def planned(previous: PriorState | None = None, **more: Any) -> LocalPlan:
    return plan(fleet(**more), FACTS, previous or PriorState(), "abc123")


def test_nodes_are_numbered_containers_of_one_network() -> None:
    made = planned()
    assert made.network == "orch-lab-abc123"
    assert [(n.name, n.container, n.address_offset) for n in made.nodes] == [
        ("lab-0", "orch-lab-abc123-0", 10),
        ("lab-1", "orch-lab-abc123-1", 11),
    ]


def test_only_written_resources_limit_a_node() -> None:
    assert {(n.cpus, n.memory_mib) for n in planned().nodes} == {(None, None)}
    limited = planned(resources={"cpu": "2", "memory": "1.5GB"})
    assert {(n.cpus, n.memory_mib) for n in limited.nodes} == {(2, 1536)}


def test_what_the_stack_decided_before_stays() -> None:
    made = planned(PriorState({"scope": "000000", "node_image": "orch/node:old"}))
    assert (made.network, made.image) == ("orch-lab-000000", "orch/node:old")
    assert any("stays" in reason for reason in made.reasons)
    assert PriorState.of_outputs({"pins": made.pins}) == PriorState(made.pins)


def test_the_same_input_gives_the_same_plan() -> None:
    assert planned(resources={"cpu": "2"}) == planned(resources={"cpu": "2"})


@pytest.mark.parametrize(
    ("more", "code", "path"),
    [
        ({"resources": {"cpu": "8"}}, "ORCH210", "resources.cpu"),
        ({"resources": {"memory": "64GB"}}, "ORCH210", "resources.memory"),
        ({"resources": {"gpu": "H100:8"}}, "ORCH211", "resources.gpu"),
        ({"nodes": str(MAX_NODES + 1)}, "ORCH212", "nodes"),
    ],
)
def test_what_does_not_fit_this_machine_is_an_error_on_its_property(
    more: dict[str, Any], code: str, path: str
) -> None:
    with pytest.raises(PlanError) as caught:
        planned(**more)
    assert (caught.value.code, caught.value.path) == (code, path)
    assert caught.value.hint


def test_blocks_auto_is_the_cpu_count_without_accelerators() -> None:
    assert planned(blocks="auto", resources={"cpu": "2"}).blocks == 2
    assert planned(blocks="auto").blocks == 4
    assert planned(blocks="3").blocks == 3


def test_addresses_count_from_the_networks_own() -> None:
    assert nth_address("10.212.7.0/24", 10) == "10.212.7.10"


def test_host_keys_follow_from_the_seed_and_the_node_alone() -> None:
    seed = "00" * 32
    assert host_key_seed(seed, "lab-0") == host_key_seed(seed, "lab-0")
    assert (
        len({host_key_seed(seed, "lab-0"), host_key_seed(seed, "lab-1"), host_key_seed("11" * 32, "lab-0")})
        == 3
    )
    assert public_host_key(seed, "lab-0").startswith("ssh-ed25519 AAAA")


def test_steps_of_init_are_told_and_what_changes_of_them_on_nodes_that_run() -> None:
    made = planned(init=["echo one", {"name": "drivers", "run": "echo two"}])
    assert [(step.key, step.content) for step in made.init] == [
        ("00 step 0", "echo one\n"),
        ("01 drivers", "echo two\n"),
    ]
    once = "init: 2 steps on each node, once, before it takes jobs (step 0, drivers)"
    assert [each for each in made.reasons if "init" in each] == [once]
    up = PriorState(made.pins, nodes=(node(0), node(1)), backend="local")
    assert [each for each in planned(up, init=["echo one"]).reasons if "init" in each] == [
        "init: 1 step on each node, once, before it takes jobs (step 0)",
        "`init` changes: its new or changed steps run on the 2 nodes that are there",
    ]
    same = planned(up, init=["echo one", {"name": "drivers", "run": "echo two"}])
    assert [each for each in same.reasons if "init" in each] == [once]
    gone = [each for each in planned(up).reasons if "init" in each]
    assert gone == ["`init` is gone: what its steps did on the 2 nodes stays"]
    assert "boot.init" not in planned(up).pins


def test_what_a_step_holds_is_in_no_pin_and_no_reason() -> None:
    made = planned(init=[{"run": "echo Wq8xT", "env": {"TOKEN": "hR3vK"}}])
    assert "Wq8xT" in made.init[0].record
    for secret in ("Wq8xT", "hR3vK"):
        assert secret not in repr((made.pins, made.reasons))


def node(index: int) -> NodeState:
    access = SshAccess(address="127.0.0.1", port=22, user="root", host_key="ssh-ed25519 A")
    return NodeState(index=index, name=f"lab-{index}", access=access)
