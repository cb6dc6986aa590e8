"""Which nodes a fleet has, by index. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orch.components.request import PriorState
from orch.spec.models import Fleet


def node_indices(fleet: Fleet, previous: PriorState) -> tuple[int, ...]:
    """The indices of the fleet's nodes.

    Running nodes keep theirs, new nodes get the lowest free ones, and a smaller fleet loses the highest.
    """
    count = fleet.nodes.target if fleet.nodes is not None else 0
    live = sorted(live_indices(previous))
    kept = live[:count]
    free = (index for index in range(len(live) + count) if index not in live)
    return tuple(sorted([*kept, *(next(free) for _ in range(count - len(kept)))]))


def live_indices(previous: PriorState) -> frozenset[int]:
    """Indices of the nodes that the stack has, from its pin `indices`."""
    return frozenset(unfolded(previous.pins.get("indices", "")))


def all_there(fleet: Fleet, previous: PriorState, indices: Sequence[int] | None = None) -> bool:
    """Whether the state records every node of the fleet.

    `indices`: the planned nodes, None: as many as the file asks for. False where they are only a part of the
    fleet: the state of the others is not known here.
    """
    expected = node_indices(fleet, previous) if indices is None else indices
    whole = fleet.nodes is None or len(expected) >= fleet.nodes.target
    return whole and all(f"{fleet.name}-{index}" in previous.existing_nodes for index in expected)


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
