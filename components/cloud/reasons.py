"""Reasons of plans on several clouds, one line each. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.components.idleness import IdleRule
from orch.components.lifetime import Lifetime
from orch.components.request import PriorState
from orch.spec.models import Fleet


def image_reason(image: str, words: str, previous: PriorState) -> str:
    """Return which machine image nodes have. `image`: its id, as pins have it; `words`: for people."""
    pinned = previous.pins.get("image") == image
    how = "pinned; `up --upgrade` looks for a newer one" if pinned else "pinned from now on"
    return f"image: {words}, {how}"


def rank_reasons(fleet: Fleet, by_topology: str | None, otherwise: str) -> Iterator[str]:
    """Yield the order of ranks. `by_topology`: which nodes come first, None if the cloud does not show it;
    `otherwise`: why ranks go by node number then."""
    if fleet.topology == "rank-ordered":
        yield f"ranks: {by_topology}" if by_topology else f"ranks: by node number; {otherwise}"


def room_words(room: int, nodes: int, places: str) -> str:
    """Return how many machines an InfiniBand network has room for. `places`: such networks of the cloud;
    `nodes`: how many are to be created."""
    short = f", and no {places} has room for all {nodes}" if room < nodes else ""
    return f"which has room for {room} now{short}"


def ending_reasons(idle: IdleRule | None, ending: Lifetime | None, left: str) -> Iterator[str]:
    """Yield when nodes end themselves. `left`: what is billed of a node that did."""
    if ending is not None:
        yield ending.reason
    if idle is not None or ending is not None:
        yield f"a node that ended itself is stopped: {left}"
