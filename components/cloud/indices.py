"""Which nodes a fleet has, by index. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from orch.components.request import PriorState
from orch.spec.models import Fleet


def node_indices(fleet: Fleet, previous: PriorState) -> tuple[int, ...]:
    """The indices of the fleet's nodes.

    Running nodes keep theirs, new nodes get the lowest free ones, and a smaller fleet loses the highest.
    Nodes that a call which did not end has made count as new, and come before others. One that ended itself
    may not be gone yet: its index is not taken again before the next `up` has forgotten it.
    """
    count = fleet.nodes.target if fleet.nodes is not None else 0
    live = sorted(live_indices(previous))
    kept = live[:count]
    begun = [each for each in indices_of(fleet.name, previous.existing_nodes or ()) if each not in live]
    taken = {*live, *begun, *indices_of(fleet.name, previous.ended)}
    lowest = (index for index in range(len(taken) + count) if index not in taken)
    free = chain(sorted(begun), lowest)
    return tuple(sorted([*kept, *(next(free) for _ in range(count - len(kept)))]))


def indices_of(fleet: str, names: Iterable[str]) -> frozenset[int]:
    """The indices of nodes by their names."""
    matches = (re.fullmatch(rf"{re.escape(fleet)}-(\d+)", name) for name in names)
    return frozenset(int(match[1]) for match in matches if match)


def live_indices(previous: PriorState) -> frozenset[int]:
    """Indices of the nodes that the stack has, from its pin `indices`; a former version recorded none of
    local nodes."""
    pinned = previous.pins.get("indices")
    return frozenset((node.index for node in previous.nodes) if pinned is None else unfolded(pinned))


def all_there(fleet: Fleet, previous: PriorState, indices: Sequence[int] | None = None) -> bool:
    """Whether the state records every node of the fleet.

    `indices`: the planned nodes, None: as many as the file asks for. False where they are only a part of the
    fleet: the state of the others is not known here.
    """
    expected = node_indices(fleet, previous) if indices is None else indices
    whole = fleet.nodes is None or len(expected) >= fleet.nodes.target
    existing = previous.existing_nodes or frozenset()
    return whole and all(f"{fleet.name}-{index}" in existing for index in expected)


def unfolded(text: str) -> tuple[int, ...]:
    """0, 1, 2, 3, 5 of `0-3,5`."""
    indices: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        indices += range(int(low), int(high or low) + 1)
    return tuple(indices)


def folded(indices: Sequence[int]) -> str:
    """`0-3,5` of 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
