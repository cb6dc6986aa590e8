"""The next step of an `up` that failed in a place."""

from __future__ import annotations

import pytest

from orch.components.request import CloudAnswer
from orch.stacks.provisioning.next_step import Nodes, Outcome, State, Step, Then, next_step

pytestmark = pytest.mark.quick

NO_ROOM = CloudAnswer(elsewhere=True, reason="no capacity", code="ORCH325")
QUOTA = CloudAnswer(elsewhere=False, reason="quota", code="ORCH327")
A, AB = frozenset({"a"}), frozenset({"a", "b"})
UP = State(before=A, stays=True)

CASES = {
    # A fleet that is new
    "no room: the next place": (State(places=2), Outcome(True, NO_ROOM), Then.NEXT, Nodes.ROLLED_BACK),
    "no room, and no place left: its former place no longer binds": (
        State(places=0),
        Outcome(True, NO_ROOM),
        Then.ANEW,
        Nodes.ROLLED_BACK,
    ),
    "no room in the last of several places": (
        State(tried=1, places=0),
        Outcome(True, NO_ROOM),
        Then.NEXT,
        Nodes.ROLLED_BACK,
    ),
    "a quota is the same everywhere": (State(places=2), Outcome(True, QUOTA), Then.REFUSE, Nodes.ROLLED_BACK),
    "an unknown error": (State(places=2), Outcome(True), Then.REFUSE, Nodes.ROLLED_BACK),
    "all nodes failed one by one": (State(places=2), Outcome(False, QUOTA), Then.REFUSE, Nodes.ROLLED_BACK),
    "an approved plan goes nowhere else": (
        State(bound=True),
        Outcome(True, NO_ROOM),
        Then.STOP,
        Nodes.ROLLED_BACK,
    ),
    # Some of its nodes came up
    "some nodes, room elsewhere: plan the others": (
        State(places=2),
        Outcome(False, NO_ROOM, A),
        Then.ANEW,
        Nodes.KEPT,
    ),
    "some nodes, a quota for the others": (State(places=2), Outcome(False, QUOTA, A), Then.STOP, Nodes.KEPT),
    "some nodes of an approved plan": (
        State(bound=True),
        Outcome(False, NO_ROOM, A),
        Then.STOP,
        Nodes.KEPT,
    ),
    "some nodes, then the call failed": (
        State(places=2),
        Outcome(True, NO_ROOM, A),
        Then.REFUSE,
        Nodes.LEFT,
    ),
    "some nodes of a fleet that has all or none": (
        State(places=2),
        Outcome(False, NO_ROOM, A, whole=True),
        Then.NEXT,
        Nodes.ROLLED_BACK,
    ),
    "the others are refused elsewhere": (
        State(partial=True, tried=1, places=1),
        Outcome(False, QUOTA),
        Then.STOP,
        Nodes.ROLLED_BACK,
    ),
    # A backend that cannot apply some nodes alone
    "indivisible, no room": (
        State(places=2),
        Outcome(True, NO_ROOM, A, divisible=False),
        Then.NEXT,
        Nodes.ROLLED_BACK,
    ),
    "indivisible, another failure": (
        State(places=2),
        Outcome(True, QUOTA, A, divisible=False),
        Then.RAISE,
        Nodes.LEFT,
    ),
    "indivisible, and it is up": (UP, Outcome(True, NO_ROOM, A, divisible=False), Then.RAISE, Nodes.LEFT),
    # A fleet that is up
    "no room to grow: beside those that are up": (
        UP,
        Outcome(True, NO_ROOM, A, whole=True),
        Then.MORE,
        Nodes.ROLLED_BACK,
    ),
    "no room to grow in a second place": (
        State(before=A, stays=True, tried=1, places=1),
        Outcome(True, NO_ROOM, A, whole=True),
        Then.NEXT,
        Nodes.ROLLED_BACK,
    ),
    "its data keeps it where it is": (
        State(stays=True, places=0),
        Outcome(True, NO_ROOM),
        Then.NEXT,
        Nodes.ROLLED_BACK,
    ),
}


@pytest.mark.parametrize(("state", "outcome", "then", "nodes"), CASES.values(), ids=CASES)
def test_what_comes_after_a_failure(state: State, outcome: Outcome, then: Then, nodes: Nodes) -> None:
    assert next_step(state, outcome) == Step(then, nodes)


@pytest.mark.parametrize(
    ("spreads", "existing", "step"),
    [
        (True, A, Step(Then.ANEW, Nodes.ROLLED_BACK, lost=True)),
        (False, A, Step(Then.MORE, Nodes.ROLLED_BACK)),
        (True, AB, Step(Then.MORE, Nodes.ROLLED_BACK)),
    ],
)
def test_a_former_node_that_is_lost_may_come_up_elsewhere(
    spreads: bool, existing: frozenset[str], step: Step
) -> None:
    state = State(before=AB, stays=True, spreads=spreads)
    assert next_step(state, Outcome(True, NO_ROOM, existing, whole=True)) == step
