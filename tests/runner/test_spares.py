"""Spare nodes: which ones are held back, who gets one, and what is said to who does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kit.ledgers.pureruns import fleet, node

from orch.runner.errors import NodesBusy, NodeUnfit, NoFit
from orch.runner.node_api.status import NodeStatus
from orch.runner.placement.availability import IDLE, NodeAvailability
from orch.runner.placement.placement import misfit, place_task
from orch.runner.placement.spares import held_back
from orch.spec.models import Task
from orch.spec.state import FleetSpares, FleetState

pytestmark = pytest.mark.quick

BUSY = NodeAvailability(busy=1, holders=("train",))
FAILED = NodeAvailability(unhealthy="Xid 79")
SILENT = NodeAvailability(usable=False, silent=True)


def lab(
    ordinary: int, spares: int = 1, *, least: int | None = None, gone: tuple[int, ...] = ()
) -> FleetState:
    """A fleet of so many nodes and spares, without those that are gone."""
    count = ordinary + spares
    made = fleet(*(node(index) for index in range(count) if index not in gone))
    return made.model_copy(update={"spares": FleetSpares(count=spares, of=count, least=least)})


def task(nodes: int = 1, **more: Any) -> Task:
    return Task.model_validate({"commands": ["true"], "nodes": nodes, **more})


def placed(wanted: Task, state: FleetState, now: dict[int, NodeAvailability]) -> list[int]:
    names = {each.index: each.name for each in state.nodes}
    availability = {names[index]: each for index, each in now.items() if index in names}
    return [seat.node.index for seat in place_task(wanted, state, availability)]


def held(state: FleetState, now: dict[int, NodeAvailability]) -> list[int]:
    indices = {each.name: each.index for each in state.nodes}
    availability = {each.name: now[each.index] for each in state.nodes if each.index in now}
    return sorted(indices[name] for name in held_back(state, availability))


@pytest.mark.parametrize(
    ("state", "now", "expected"),
    [
        # The last ones that are idle; a busy node is none.
        (lab(4), {}, [4]),
        (lab(4, 2), {}, [4, 5]),
        (lab(2), {0: BUSY, 1: BUSY}, [2]),
        (lab(2), {0: BUSY, 2: BUSY}, [1]),
        # In the place of one that gets no jobs there is a spare, and none is left.
        (lab(2), {1: FAILED}, []),
        (lab(2), {0: BUSY, 1: FAILED, 2: BUSY}, []),
        (lab(4, 2), {1: FAILED}, [5]),
        (lab(2), {1: NodeAvailability(cordon="by ada")}, []),
        (lab(2), {1: NodeAvailability(unfit="init")}, []),
        (lab(2), {1: SILENT}, []),
        # A run on a node that failed has not left it: the spare is to be that run's.
        (lab(2), {0: BUSY, 1: replace(FAILED, busy=1)}, [2]),
        # While a machine is made anew its node is not there; what comes is not ready at first.
        (lab(2, gone=(1,)), {}, []),
        (lab(2), {1: NodeAvailability(ready=False)}, [1]),
        # A spare that is lost is missing as any.
        (lab(2), {2: SILENT}, []),
        (lab(2), {2: FAILED}, []),
        # Nodes above the minimum that do not answer may have ended themselves: nothing is missing.
        (lab(7, least=3), dict.fromkeys(range(3, 8), SILENT), [2]),
        (lab(7, least=3), {1: SILENT, **dict.fromkeys(range(3, 8), SILENT)}, []),
        # More is in use than the fleet gives: spares came later than the runs.
        (lab(2, 2), dict.fromkeys(range(3), BUSY), [3]),
    ],
)
def test_spares_are_the_last_idle_nodes_beyond_those_that_the_fleet_gives(
    state: FleetState, now: dict[int, NodeAvailability], expected: list[int]
) -> None:
    assert held(state, now) == expected


def test_a_fleet_without_spares_holds_nothing_back() -> None:
    assert held_back(fleet(node(0), node(1)), {}) == frozenset()


def test_a_run_gets_the_spare_in_the_failed_nodes_place_and_no_other_does() -> None:
    assert placed(task(2), lab(2), {}) == [0, 1]
    assert placed(task(2), lab(2), {1: FAILED}) == [0, 2]
    # The new machine is being prepared: nobody waits for it.
    assert placed(task(2), lab(2), {1: NodeAvailability(ready=False)}) == [0, 2]
    assert placed(task(2), lab(2, gone=(1,)), {}) == [0, 2]
    # The run is on 0 and 1 still; a small one does not get what will be its place.
    with pytest.raises(NodesBusy, match="needs 2 nodes, 1 can be had") as caught:
        placed(task(2), lab(2), {0: BUSY, 1: replace(FAILED, busy=1)})
    assert "is a spare, held back for nodes that fail" in (caught.value.detail or "")
    # Two of three are gone: no spare helps.
    with pytest.raises(NodeUnfit):
        placed(task(2), lab(2), {1: FAILED, 2: FAILED})


def test_a_run_where_it_failed_before_is_given_another_node() -> None:
    assert placed(task(1), lab(2), {0: NodeAvailability(failed=1)}) == [1]
    assert placed(task(2), lab(2), {0: NodeAvailability(failed=1)}) == [1, 2]


def test_a_task_that_names_a_node_gets_it_although_it_has_the_highest_number() -> None:
    state = lab(2)
    assert placed(task(1, instances=[state.nodes[2].name]), state, {}) == [2]


def test_a_task_that_needs_the_spares_too_is_told_of_them() -> None:
    reason = misfit(task(3), lab(2))
    assert reason is not None
    assert reason.summary == "it has 2 nodes and 1 spare, held back for nodes that fail, the task needs 3"
    with pytest.raises(NoFit, match="does not fit this task"):
        place_task(task(3), lab(2))
    assert misfit(task(3), lab(2).model_copy(update={"spares": None})) is None


def test_a_fleet_is_recorded_without_its_spares_for_readers_that_do_not_know_them() -> None:
    assert "spares" not in lab(2).model_dump()


def test_what_a_node_says_of_itself() -> None:
    assert NodeAvailability.of(NodeStatus("idle")) == IDLE
    assert NodeAvailability.of(NodeStatus("unreachable")) == SILENT
    assert not NodeAvailability.of(NodeStatus("failure")).takes_jobs
    assert not NodeAvailability.of(NodeStatus("provisioning")).ready
