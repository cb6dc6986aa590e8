"""Decide what an `up` does after it failed in a place. Pure; `bring_up.py` acts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from orch.components.request import CloudAnswer


class Then(Enum):
    """The next action of an `up`."""

    RAISE = "raise the failure of the engine"
    REFUSE = "raise an error that says what is left"
    STOP = "try no other place"
    NEXT = "try the next place"
    MORE = "try the places for more nodes beside those that are up"
    ANEW = "plan again from what exists, and try those places"


class Nodes(Enum):
    """The treatment of nodes that the call created, before the next action."""

    LEFT = "as the call left them"
    KEPT = "kept, and the fleet recorded without the missing ones"
    ROLLED_BACK = "removed, but for those that the fleet had before"


@dataclass(frozen=True)
class State:
    """An `up` when it failed in a place.

    `before`: nodes that the fleet had before. `stays`: these, or its data, keep it where it is. `spreads`:
    its nodes may be in several places. `bound`: an approved plan allows this place alone. `partial`: nodes of
    an earlier place are kept. `tried`: number of places before this one that had no room; `places`: number of
    places that are left to try.
    """

    before: frozenset[str] = frozenset()
    stays: bool = False
    spreads: bool = False
    bound: bool = False
    partial: bool = False
    tried: int = 0
    places: int = 0


@dataclass(frozen=True)
class Outcome:
    """The failure of a plan in a place.

    `failed`: the whole call failed, else single nodes did. `answer`: what the cloud's errors mean together,
    None for an unknown error. `existing`: nodes of the plan that exist now. `divisible`: the plan can be
    applied with some of its nodes alone; `whole`: the fleet has all of its nodes or none.
    """

    failed: bool = False
    answer: CloudAnswer | None = None
    existing: frozenset[str] = frozenset()
    divisible: bool = True
    whole: bool = False

    @property
    def no_room(self) -> bool:
        """Return whether another place may do."""
        return self.answer is not None and self.answer.elsewhere


@dataclass(frozen=True)
class Step:
    """The next step of an `up`. `lost`: some of the former nodes are gone, and are recorded as gone."""

    then: Then
    nodes: Nodes = Nodes.LEFT
    lost: bool = False


def next_step(state: State, outcome: Outcome) -> Step:
    """Return what to do with the nodes of a place, and what to do next."""
    if outcome.failed and not outcome.divisible and (state.stays or not outcome.no_room):
        return Step(Then.RAISE)  # existing nodes are kept: this backend cannot apply some of them alone
    if outcome.existing and outcome.divisible and not outcome.whole:
        if outcome.failed:
            return Step(Then.REFUSE)
        goes_on = outcome.no_room and not state.bound
        return Step(Then.ANEW if goes_on else Then.STOP, Nodes.KEPT)
    lost = outcome.no_room and state.spreads and not state.before <= outcome.existing
    return Step(_after_roll_back(state, outcome, lost=lost), Nodes.ROLLED_BACK, lost)


def _after_roll_back(state: State, outcome: Outcome, *, lost: bool) -> Then:
    if not outcome.no_room:
        return Then.STOP if state.partial else Then.REFUSE
    if state.bound:
        return Then.STOP
    if lost:
        return Then.ANEW
    if state.before and not state.tried:
        return Then.MORE  # nodes that are up stay; the others may go where there is capacity
    if not state.stays and not state.places and not state.tried:
        return Then.ANEW  # the place of an interrupted call no longer binds the fleet
    return Then.NEXT
