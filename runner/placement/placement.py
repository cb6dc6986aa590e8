"""Which nodes of a fleet a task gets, and which group of ranks gets each: a bipartite matching.

Pure functions. Claims on the nodes decide what is really free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from orch.runner.errors import NodeCordoned, NodesBusy, NoFit
from orch.runner.node_api.first_boot import unfit_error
from orch.runner.node_api.verdict import unhealthy_error
from orch.runner.placement.availability import IDLE, NodeAvailability
from orch.runner.placement.conditions import Conditions, Unmet, misfit_of, summary_of
from orch.runner.placement.node_fit import Misfit, Seat, blocks_of_rank, in_one, node_misfits
from orch.runner.placement.rank_groups import RankGroup, rank_groups
from orch.runner.placement.spares import held_back, held_message
from orch.spec.diagnostics import property_path
from orch.spec.grammar.hosts import fold
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted, few

if TYPE_CHECKING:
    from orch.spec.models import Task


def misfit(task: Task, fleet: FleetState) -> Misfit | None:
    """Why `task` cannot run on `fleet` even when all of it is idle, the reason nearest to fitting; None when
    it can."""
    groups = rank_groups(task)
    nodes, nodes_path = groups[0].all_nodes, "groups" if task.groups else "nodes"
    if nodes > 1 and fleet.placement != "cluster":
        return Misfit(
            "distributed tasks need a fleet with `placement: cluster`",
            "ORCH241",
            f"add `placement: cluster` to {fleet.name}",
            nodes_path,
        )
    spares = fleet.spares
    most = len(fleet.nodes) if spares is None else min(len(fleet.nodes), spares.of - spares.count)
    if most < nodes:
        beside = f" and {counted(spares.count, 'spare')}, held back for nodes that fail" if spares else ""
        return Misfit(
            f"it has {counted(most, 'node')}{beside}, the task needs {nodes}",
            path=nodes_path,
            gap=1 - most / nodes,
        )
    fits = _fits(task, groups, fleet)
    matching = match([fits[node.name] for node in fleet.nodes], [group.nodes for group in groups])
    if not matching.short:
        return None
    short = [groups[index] for index in matching.short]
    if len(short) > 1:
        usable = [node.name for node in fleet.nodes if fits[node.name].intersection(matching.short)]
        return Misfit(
            f"groups {' and '.join(group.name or '' for group in short)} need "
            f"{sum(group.nodes for group in short)} nodes together, it has "
            f"{counted(len(usable), 'node')} that fit one of them: {fold(usable)}",
            path="groups",
            gap=1 - len(usable) / sum(group.nodes for group in short),
        )
    return _nearest(task, short[0], fleet)


def _fits(task: Task, groups: Sequence[RankGroup], fleet: FleetState) -> dict[str, frozenset[int]]:
    """Node name -> the groups, by index, whose ranks can run there when it is idle."""
    conditions = Conditions.of(task)
    return {
        node.name: frozenset(
            index
            for index, group in enumerate(groups)
            if group.allows(fleet.name) and next(node_misfits(group, node), None) is None
        )
        if not conditions.unmet(fleet, node)
        else frozenset()
        for node in fleet.nodes
    }


def _nearest(task: Task, group: RankGroup, fleet: FleetState) -> Misfit:
    """Why too few nodes of `fleet` fit `group`: what the nearest node that is needed does not have."""
    if not group.allows(fleet.name):
        summary = f"{group.noun} may run on {' or '.join(group.fleets)} only"
        return Misfit(summary, path=f"{group.place}fleets")
    conditions = Conditions.of(task)
    unmet = {node.name: conditions.unmet(fleet, node) for node in fleet.nodes}
    by_path: dict[str, list[Unmet]] = {}
    for each in (one for found in unmet.values() for one in found):
        by_path.setdefault(each.path, []).append(each)
    reasons: list[Misfit] = []
    for node in fleet.nodes:
        lacking = [replace(each, path=group.place + each.path) for each in node_misfits(group, node)]
        if not (unmet[node.name] or lacking):
            continue
        if unmet[node.name]:
            paths = [each.path for each in unmet[node.name]]
            reason = misfit_of(unmet[node.name], summary_of(by_path, paths, len(fleet.nodes)))
            if lacking:
                also = in_one(lacking, group, node)
                reason = replace(
                    reason,
                    summary=f"{reason.summary}; {also.summary}",
                    others=(*reason.others, also.path, *also.others),
                    gap=(reason.gap + also.gap) / 2,
                )
        else:
            reason = in_one(lacking, group, node)
        reasons.append(reason)
    fitting = len(fleet.nodes) - len(reasons)
    reason = sorted(reasons, key=lambda each: each.distance)[max(0, group.nodes - fitting - 1)]
    if not fitting or reason.code is not None:
        return reason
    fit = f"{fitting} of the {group.nodes} nodes that {group.noun} needs {'fits' if fitting == 1 else 'fit'}"
    return replace(reason, summary=f"{fit}; {reason.summary}")


def place_task(
    task: Task, fleet: FleetState, availability: Mapping[str, NodeAvailability] | None = None
) -> tuple[Seat, ...]:
    """Nodes in rank order: group by group, within each neighbours together, by rack, topology, number.

    Cordoned nodes, and nodes whose preparation failed or that are not healthy, are excluded. Nodes without
    enough free blocks, and nodes that do not answer, are used only when no others are left; before those,
    nodes on which the run failed. A job that needs part of a node goes to the node with the fewest free
    blocks, so that whole nodes stay free for jobs that need them.

    Spares of the fleet are left out, but for as many as take the places of nodes that get no jobs.

    Raises NoFit when the fleet is too small; NodeUnfit or NodeCordoned when too few nodes remain, NodesBusy
    when too few do beside spares.
    """
    reason = misfit(task, fleet)
    if reason is not None:
        raise no_fit(task, {fleet.name: reason})
    availability = availability or {}
    groups = rank_groups(task)
    fits = _fits(task, groups, fleet)
    sizes = [group.nodes for group in groups]
    fitting = [node for node in fleet.nodes if fits[node.name]]
    prepared = [node for node in fitting if availability.get(node.name, IDLE).unfit is None]
    if match([fits[node.name] for node in prepared], sizes).short:
        first = next(node.name for node in fitting if node not in prepared)
        raise unfit_error(first, availability[first].unfit or "")
    healthy = [node for node in prepared if availability.get(node.name, IDLE).unhealthy is None]
    if match([fits[node.name] for node in healthy], sizes).short:
        first = next(node.name for node in prepared if node not in healthy)
        raise unhealthy_error(first, availability[first].unhealthy or "", fleet.name)
    schedulable = [node for node in healthy if availability.get(node.name, IDLE).cordon is None]

    def order(node: NodeState) -> tuple[object, ...]:
        available = availability.get(node.name, IDLE)
        free, needed = node.blocks - available.busy, blocks_of_rank(groups[0], node)
        tight = free if not groups[0].distributed else 0
        return (not available.usable, free < needed, available.failed, tight, *_neighbours(node))

    schedulable.sort(key=order)
    held = held_back(fleet, availability, lambda node: bool(fits[node.name]))
    remaining = [node for node in schedulable if node.name not in held]
    matching = match([fits[node.name] for node in remaining], sizes)
    if matching.short and not match([fits[node.name] for node in schedulable], sizes).short:
        raise NodesBusy(
            f"the run needs {counted(sum(sizes), 'node')}, {matching.usable} can be had",
            where=f"fleet {fleet.name}",
            detail=held_message(fleet, held),
            hint="`--wait` has this run wait in line; `orch fleet` shows what keeps the other nodes",
        )
    if matching.short:
        raise NodeCordoned(
            cordoned_message(fleet, availability) or "",
            where=f"fleet {fleet.name}",
            detail=f"{len(schedulable)} other nodes fit this task, it needs {sum(sizes)}",
            hint="let a node take jobs again with `orch cordon --undo NODE`",
        )
    return tuple(
        Seat(node, blocks_of_rank(group, node))
        for group, positions in zip(groups, matching.groups, strict=True)
        for node in sorted((remaining[position] for position in positions), key=_neighbours)
    )


def cordoned_message(fleet: FleetState, availability: Mapping[str, NodeAvailability]) -> str | None:
    """The message about a fleet's cordoned nodes; None when there are none."""
    return _nodes_message(fleet, "cordoned", {name: each.cordon for name, each in availability.items()})


def unfit_message(fleet: FleetState, availability: Mapping[str, NodeAvailability]) -> str | None:
    """The message about nodes whose preparation failed; None when there are none."""
    return _nodes_message(fleet, "kept out", {name: each.unfit for name, each in availability.items()})


def unhealthy_message(fleet: FleetState, availability: Mapping[str, NodeAvailability]) -> str | None:
    """The message about nodes whose health is a failure; None when there are none."""
    reasons = {name: each.unhealthy for name, each in availability.items()}
    return _nodes_message(fleet, "kept out for their health", reasons)


def _nodes_message(fleet: FleetState, word: str, reasons: Mapping[str, str | None]) -> str | None:
    descriptions = [
        f"{node.name} ({why})" for node in fleet.nodes if (why := reasons.get(node.name)) is not None
    ]
    verb = "nodes are" if len(descriptions) > 1 else "node is"
    return f"{len(descriptions)} {verb} {word}: {', '.join(descriptions)}" if descriptions else None


def _neighbours(node: NodeState) -> tuple[str, tuple[str, ...], int]:
    return node.rack or "", node.topology, node.index


def no_fit(task: Task, reasons: Mapping[str, Misfit]) -> NoFit:
    """The error for a task that fits no fleet, the nearest fleet first.

    One reason with a code is told as it is, others fleet by fleet.
    """
    ordered = sorted(reasons.items(), key=lambda item: item[1].distance)
    first = ordered[0][1]
    if first.code is not None and {reason.code for reason in reasons.values()} == {first.code}:
        where = f"fleet {', '.join(reasons)}"
        return NoFit(
            first.summary,
            where=where,
            hint=first.hint,
            code=first.code,
            path=first.path,
            fleets=tuple(reasons),
        )
    if len(reasons) == 1:
        return NoFit(
            f"fleet {next(iter(reasons))} does not fit this task",
            detail=first.summary,
            hint=first.hint or _hint(task, (first,)),
            path=first.path,
            fleets=tuple(reasons),
        )
    return NoFit(
        "no fleet fits this task",
        detail=few((f"{name}: {reason.summary}" for name, reason in ordered), 8, separator="; "),
        hint=_hint(task, reasons.values()),
        path=first.path,
        fleets=tuple(name for name, _ in ordered),
    )


_NODES = {"nodes", "groups"}


def _hint(task: Task, reasons: Iterable[Misfit]) -> str:
    """What helps against these reasons: more nodes, or other ones."""
    paths = {path for reason in reasons for path in (reason.path, *reason.others)}
    if paths <= _NODES:
        what = "the `nodes` of its groups" if task.groups else "`nodes` of the task"
        return f"provision a fleet with `placement: cluster` and enough nodes, or lower {what}"
    (path, *more) = sorted(paths)
    fitting = "a fleet whose nodes each have what the task asks for" if task.nodes > 1 else "a fitting fleet"
    if more and all("resources" in each for each in paths - _NODES):
        blocks = {each.rpartition(".")[0] for each in paths}
        path, more = blocks.pop() if len(blocks) == 1 else "resources", []
    what = "what the task asks for" if more else f"`{place_of(path)}` of the task"
    return f"provision {fitting}, or change {what}"


def place_of(path: str) -> str:
    """A property's path as files are read: `groups[1].resources.gpu`."""
    return property_path(parts_of(path))


def parts_of(path: str) -> tuple[str | int, ...]:
    """The parts of a Misfit's path: `groups.1.resources` is of the second group."""
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


Kind = frozenset[int]
"""A kind of node: the groups of ranks that it fits, by their indices."""


@dataclass(frozen=True)
class Matching:
    """The nodes of each group, by their position in the sequence that was matched.

    `short`: groups that together fit fewer nodes than they need; empty when each group has its nodes.
    `usable`: how many nodes fit any of the groups in `short`.
    """

    groups: tuple[tuple[int, ...], ...]
    short: tuple[int, ...] = ()
    usable: int = 0


def match(fits: Sequence[Kind], sizes: Sequence[int]) -> Matching:
    """Give each group as many nodes as `sizes` says, each node to one group.

    `fits`: for each node, the best first, the groups that it fits. A node that was taken stays taken, and
    moves to another group where that makes room for one more: so a matching is found whenever there is one,
    and no later node takes the place of an earlier one that would do (the independent sets of nodes are a
    transversal matroid, for which the greedy choice is the best). Nodes that fit the same groups are
    interchangeable, so the search walks over groups and kinds of nodes, not over nodes.
    """
    # Group -> kind of node -> its nodes there.
    held: list[dict[Kind, list[int]]] = [{} for _ in sizes]
    filled = [0] * len(sizes)
    for node, kind in enumerate(fits):
        if sum(filled) == sum(sizes):
            break
        path = _path_to_room(kind, held, [filled[group] < size for group, size in enumerate(sizes)])
        if not path:
            continue
        # From the group with room back to the node's first one, each gives a node of a kind to the next.
        for (giver, _), (taker, moved) in reversed(list(pairwise(path))):
            held[taker].setdefault(moved, []).append(held[giver][moved].pop())
        held[path[0][0]].setdefault(kind, []).append(node)
        filled[path[-1][0]] += 1
    short = _shortage(fits, sizes, held, filled)
    usable = sum(1 for kind in fits if kind & set(short))
    return Matching(_in_order(held), short, usable)


def _path_to_room(
    kind: Kind, held: Sequence[dict[Kind, list[int]]], room: Sequence[bool]
) -> list[tuple[int, Kind]]:
    """Groups from one that a node of `kind` fits to one with room, each with the kind that moves into it.

    The shortest such way; empty when there is none.
    """
    came: dict[int, tuple[int | None, Kind]] = dict.fromkeys(sorted(kind), (None, kind))
    queue = deque(came)
    while queue:
        group = queue.popleft()
        if room[group]:
            path: list[tuple[int, Kind]] = []
            step: int | None = group
            while step is not None:
                before, moved = came[step]
                path.append((step, moved))
                step = before
            return path[::-1]
        for there, nodes in held[group].items():
            for other in sorted(there) if nodes else ():
                if other not in came:
                    came[other] = (group, there)
                    queue.append(other)
    return []


def _shortage(
    fits: Sequence[Kind], sizes: Sequence[int], held: Sequence[dict[Kind, list[int]]], filled: Sequence[int]
) -> tuple[int, ...]:
    """Groups that need more nodes than fit any of them (Hall's condition): from the first group that is not
    full, with all groups that hold a node which fits one of these."""
    first = next((group for group, size in enumerate(sizes) if filled[group] < size), None)
    if first is None:
        return ()
    short = {first}
    while True:
        more = {
            group
            for group, kinds in enumerate(held)
            if group not in short and any(nodes and kind & short for kind, nodes in kinds.items())
        }
        if not more:
            return tuple(sorted(short))
        short |= more


def _in_order(held: Sequence[dict[Kind, list[int]]]) -> tuple[tuple[int, ...], ...]:
    """The nodes of each group: of nodes of one kind, earlier groups have the earlier ones."""
    kinds: dict[Kind, list[int]] = {}
    for each in held:
        for kind, nodes in each.items():
            kinds.setdefault(kind, []).extend(nodes)
    rest = {kind: iter(sorted(nodes)) for kind, nodes in kinds.items()}
    return tuple(
        tuple(sorted(next(rest[kind]) for kind, nodes in each.items() for _ in nodes)) for each in held
    )
