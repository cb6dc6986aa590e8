"""A small picture of a fleet before and after a plan, as Mermaid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orch.review.escape import mermaid
from orch.review.model import NodeGroup, StackReview
from orch.stacks.events.kinds import several
from orch.stacks.events.notation import fold

MOST = 6
"""Groups of nodes on each side; the others are counted."""

_WIDEST = 60
_MARKETS = {"spot": ", spot", "reserved": ", reserved"}


def picture(stack: StackReview) -> list[str]:
    """The lines of the picture; none where a fleet has the same nodes as before and none of them goes."""
    if not stack.before and not stack.after:
        return []
    if set(stack.before) == set(stack.after) and not any(each.is_nodes for each in stack.losses):
        return []
    lines = ["flowchart LR"]
    lines += _side("before", stack.before)
    lines += _side("after", stack.after)
    lines.append(f"  before -->|{mermaid(_arrow(stack))}| after")
    return lines


def words(group: NodeGroup) -> tuple[str, ...]:
    """Return what nodes are, line by line: their names, their type and place, their GPUs."""
    names = fold(group.names)
    machine = f" x {group.machine}" if group.machine else " nodes"
    place = f", {group.place}" if group.place else ""
    gpus = f"{several('GPU', group.gpus * len(group.names))}{f' ({group.gpu})' if group.gpu else ''}"
    lines = [
        names if len(names) <= _WIDEST else f"{names[: _WIDEST - 1]}…",
        f"{len(group.names)}{machine}{place}{_MARKETS.get(group.market, '')}",
    ]
    return (*lines, *([gpus] if group.gpus else []))


def _side(side: str, groups: Sequence[NodeGroup]) -> Iterator[str]:
    yield f"  subgraph {side}"
    for index, group in enumerate(groups[:MOST]):
        label = "<br/>".join(map(mermaid, words(group)))
        yield f'    {side}{index}["{label}"]'
    if len(groups) > MOST:
        rest = sum(len(group.names) for group in groups[MOST:])
        yield f'    {side}{MOST}["{rest} more nodes"]'
    if not groups:
        yield f'    {side}0["no node"]'
    yield "  end"


def _arrow(stack: StackReview) -> str:
    """Return the changes of the nodes: `4 replaced, 2 added`."""
    before = {name for group in stack.before for name in group.names}
    after = {name for group in stack.after for name in group.names}
    # In the picture are nodes alone; other resources have tables.
    gone = before - after
    replaced = sum(each.number for each in stack.losses if each.op == "replace" and each.is_nodes)
    parts = [
        (replaced, "replaced"),
        (len(gone), "removed"),
        (len(after - before), "added"),
        (len(before & after) - replaced, "stay"),
    ]
    return ", ".join(f"{number} {word}" for number, word in parts if number > 0) or "no node"
