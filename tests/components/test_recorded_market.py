"""What a fleet's state records of how its nodes were bought: runs choose among them by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.clouds.aws_cases import Case
from kit.clouds.gcp_cases import Case as GcpCase

from orch.components.aws.fleet_state import FleetOutputs, fleet_state
from orch.components.cloud.machines.host_keys import HostKey
from orch.components.gcp import fleet_state as gcp_state
from orch.runner.placement.placement import misfit
from orch.spec.models import Task
from orch.spec.state import FleetState

Recorded = Callable[[str], FleetState]


def on_aws(name: str) -> FleetState:
    case = Case.of(name)
    plan = case.plan()
    ids = [f"i-{node.index}" for node in plan.nodes]
    keys, internal = [HostKey("ssh-ed25519 AAAA", each) for each in ids], ["10.0.0.1"] * len(ids)
    seen = FleetOutputs("ab" * 32, ids, keys, internal, internal, (), None)
    return FleetState.model_validate(fleet_state(plan, case.settings, "lab", seen))


def on_gcp(name: str) -> FleetState:
    case = GcpCase.of(name)
    plan = case.plan()
    made = [
        gcp_state.NodeInstance(n.name, f"id-{n.index}", "10.0.0.1", "203.0.113.1", None) for n in plan.nodes
    ]
    keys = {each.id: HostKey("ssh-ed25519 AAAA", each.id) for each in made}
    seen = gcp_state.FleetOutputs("ab" * 32, made, keys, None)
    return FleetState.model_validate(gcp_state.fleet_state(plan, case.settings, "lab", seen))


@pytest.mark.parametrize("recorded", [on_aws, on_gcp])
def test_nodes_of_the_spot_market_are_for_runs_that_ask_for_them_or_for_nothing(recorded: Recorded) -> None:
    state = recorded("spot")
    assert {(node.spot, node.reservation) for node in state.nodes} == {(True, None)}
    for policy, fits in (("spot", True), ("auto", True), ("on-demand", False), (None, True)):
        asked = {"commands": ["x"], **({"spot_policy": policy} if policy else {})}
        assert (misfit(Task.model_validate(asked), state) is None) is fits, policy


@pytest.mark.parametrize("recorded", [on_aws, on_gcp])
def test_reserved_nodes_are_found_by_their_reservation(recorded: Recorded) -> None:
    state = recorded("reservation")
    (reservation,) = {node.reservation for node in state.nodes}
    assert reservation
    assert not any(node.spot for node in state.nodes)
    for asked, fits in ((reservation, True), ("another", False)):
        task = Task.model_validate({"commands": ["x"], "reservation": asked})
        assert (misfit(task, state) is None) is fits, asked


def test_other_nodes_are_recorded_as_before() -> None:
    for state in (on_aws("p5"), on_gcp("a3-mega")):
        assert not any({"spot", "reservation"} & set(node.model_dump()) for node in state.nodes)
