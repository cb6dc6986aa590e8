"""What a plan costs and what it ends: prices, data that is lost, runs that stop, doors that open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orch.components.deployment import Deployment
from orch.review.model import Cost, Danger, Loss, NodeGroup
from orch.review.tree import leaf_text
from orch.spec.models import Fleet
from orch.stacks.events.changes import Change
from orch.stacks.events.kinds import kind_of, several
from orch.stacks.events.notation import fold
from orch.stacks.plans.plan import Plan
from orch.stacks.provisioning.busy_nodes import Occupant


def cost_of(plan: Plan, fleet: Fleet, after: Sequence[NodeGroup], prices: str) -> Cost:
    """The cost of a fleet. `prices`: which price list they are from, and of when.

    Nodes that the file allows beyond the planned ones count at the price of the dearest planned one;
    without a known price there is no ceiling.
    """
    planned = sum(len(group.names) for group in after)
    most = most_nodes(fleet, planned)
    unknown = [group for group in after if group.price is None and group.market != "reserved"]
    known = [group.price for group in after if group.price is not None]
    ceiling: float | None = None
    if not unknown and (known or most == planned):
        ceiling = round(plan.hourly + max(0, most - planned) * max(known, default=0.0), 6)

    def of_market(market: str) -> float:
        groups = (group for group in after if group.market == market and group.price is not None)
        return round(sum((group.price or 0.0) * len(group.names) for group in groups), 6)

    budget = fleet.budget.hourly if fleet.budget is not None else None
    return Cost(
        now=round(plan.hourly - plan.delta, 6) + 0.0,
        after=plan.hourly,
        ceiling=ceiling,
        nodes=planned,
        most_nodes=most,
        on_demand=of_market("on-demand"),
        spot=of_market("spot"),
        reserved=of_market("reserved"),
        reserved_nodes=sum(len(group.names) for group in after if group.market == "reserved"),
        unknown=tuple(f"{fold(group.names)} ({group.machine}, {group.market})" for group in unknown),
        not_counted=plan.unpriced,
        budget=float(budget) if budget is not None else None,
        prices=prices if any(group.market != "none" for group in after) else "",
    )


def most_nodes(fleet: Fleet, planned: int) -> int:
    """The most nodes that a fleet may get: as planned, where its file names no maximum."""
    if fleet.nodes is None:
        return planned
    return max(planned, fleet.nodes.target if fleet.nodes.max is None else fleet.nodes.max)


def recorded_groups(nodes: Iterable[Mapping[str, Any]]) -> tuple[NodeGroup, ...]:
    """The nodes of a stack, as its state records them, by type, place and price."""
    groups: dict[NodeGroup, list[str]] = {}
    for node in nodes:
        gpus: Mapping[str, Any] = node.get("gpus") or {}
        machine = str(node.get("instance_type") or "")
        reserved = node.get("reservation") is not None
        market = "reserved" if reserved else "spot" if node.get("spot") else "on-demand"
        key = NodeGroup(
            (),
            machine or _size(node),
            str(node.get("zone") or node.get("region") or ""),
            market if machine else "none",
            node.get("price_hourly") if machine else 0.0,
            int(gpus.get("count") or 0),
            str(gpus.get("name") or ""),
        )
        groups.setdefault(key, []).append(str(node["name"]))
    return tuple(_named(key, names) for key, names in groups.items())


def planned_groups(compiled: Deployment) -> tuple[NodeGroup, ...]:
    """The nodes that a fleet has after its plan; those of backends without prices are alike."""
    if compiled.priced:
        return tuple(
            NodeGroup(each.nodes, each.machine, each.place, each.market, each.price, each.gpus, each.gpu)
            for each in compiled.priced
            if each.nodes
        )
    if not compiled.nodes:
        return ()
    node: Mapping[str, Any] = compiled.new_node or {}
    gpus: Mapping[str, Any] = node.get("gpus") or {}
    return (
        NodeGroup(
            compiled.nodes,
            _size(node),
            "",
            gpus=int(gpus.get("count") or 0),
            gpu=str(gpus.get("name") or ""),
        ),
    )


def gpus_of(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The GPUs of each recorded node."""
    return {str(node["name"]): int((node.get("gpus") or {}).get("count") or 0) for node in nodes}


def _named(group: NodeGroup, names: Sequence[str]) -> NodeGroup:
    return NodeGroup(
        tuple(names), group.machine, group.place, group.market, group.price, group.gpus, group.gpu
    )


def _size(node: Mapping[str, Any]) -> str:
    """`2 CPUs, 1024 MiB` of a node that has no type."""
    cpus, memory = node.get("cpus"), node.get("memory_mib")
    words = [f"{cpus:g} CPUs"] if cpus else []
    words += [f"{memory:g} MiB"] if memory else []
    return ", ".join(words)


WORLD = ("0.0.0.0/0", "::/0")

_WIDEST = 120
"""Characters of a value in a reason."""


def losses(
    plan: Plan, gpus: Mapping[str, int], occupants: Sequence[Occupant], makers: Mapping[str, str]
) -> Iterator[Loss]:
    """Yield what the plan of a fleet destroys: its nodes first, then other resources, equal ones in one row.

    `gpus`: the GPUs of each node that is there; `makers`: each with the resource that made it.
    """
    explained = plan.headline.explained
    by_maker = {maker: node for node, maker in makers.items()}
    nodes: dict[tuple[str, str], list[tuple[str, Change]]] = {}
    others: dict[tuple[str, str, str], list[Change]] = {}
    for change in plan.changes:
        if change.op not in ("delete", "replace"):
            continue
        node = by_maker.get(change.name)
        if node in plan.lost_nodes and not change.type.startswith("orch:fleet:"):
            nodes.setdefault((change.op, kind_of(change.type)), []).append((str(node), change))
        else:
            reason = forced_by(change, plan)
            others.setdefault((change.op, change.type, reason), []).append(change)
    for (op, _), members in nodes.items():
        names = list(dict.fromkeys(name for name, _ in members))
        reason = "; ".join(plan.headline.forced_by) if op == "replace" or plan.headline.moves else ""
        reason = reason or forced_by(members[0][1], plan)
        stops = "; ".join(_stops(plan, names, gpus, occupants))
        yield Loss(_op(op), fold(names), explained.noun, len(names), reason, stops, is_nodes=True)
    for (op, type_, reason), changes in others.items():
        lost = "all data on it" if type_ in explained.holds_data else ""
        yield Loss(_op(op), fold(each.name for each in changes), kind_of(type_), len(changes), reason, lost)


def run_dangers(stack: str, occupants: Sequence[Occupant]) -> Iterator[Danger]:
    """A sentence for each run that stops."""
    of_run: dict[tuple[str, str, int | None], list[str]] = {}
    for each in occupants:
        of_run.setdefault((each.run, each.by, each.gpus), []).append(each.node)
    for (run, by, gpus), nodes in of_run.items():
        whole = f" of {several('GPU', gpus)}" if gpus else ""
        names = list(dict.fromkeys(nodes))
        yield Danger(
            "runs",
            stack,
            f"run {run or '?'} of {by or '?'}{whole} stops: {fold(names)} "
            f"{'goes' if len(names) == 1 else 'go'} under it",
        )


def forced_by(change: Change, plan: Plan) -> str:
    """The properties of a resource that cannot change in place; why it goes, where it is no longer
    planned."""
    if change.op == "delete":
        return "the file no longer asks for it"
    explained = plan.headline.explained
    leaves = [leaf for leaf in change.diff if leaf.replaces and not leaf.follows]
    words = [
        leaf_text(leaf, _WIDEST).removesuffix(" (replaces it)")
        for leaf in leaves
        if (row := explained.row(change.type, leaf.path)) is None or row.trait is not None
    ]
    if not words and any(leaf.replaces for leaf in change.diff):
        following = ", ".join(leaf.path for leaf in change.diff if leaf.replaces)
        return "; ".join(plan.headline.forced_by) or f"{following} follows from what is replaced before it"
    return "; ".join(words)


def opened(changes: Sequence[Change]) -> Iterator[tuple[Change, str]]:
    """Properties of firewalls that newly let the whole world in, each with its text."""
    for change in changes:
        kind = kind_of(change.type)
        if "firewall" not in kind and "security group" not in kind:
            continue
        for leaf in change.diff:
            if is_open(leaf.new) and not is_open(leaf.old) and "egress" not in leaf.path.lower():
                yield change, leaf_text(leaf, _WIDEST)


def is_open(value: Any) -> bool:
    """Return True if a value names the whole world."""
    if isinstance(value, Mapping):
        return any(map(is_open, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_open, value))
    return value in WORLD


def _stops(
    plan: Plan, names: Sequence[str], gpus: Mapping[str, int], occupants: Sequence[Occupant]
) -> Iterator[str]:
    """Runs, GPUs and data that go with these nodes."""
    runs = dict.fromkeys((each.run or "?", each.by) for each in occupants if each.node in names)
    if runs:
        yield f"runs {', '.join(f'{run} of {by}' if by else run for run, by in runs)}"
    if number := sum(gpus.get(name, 0) for name in names):
        yield several("GPU", number)
    explained = plan.headline.explained
    if explained.owned_by_user:
        yield "the machines stay as they are"
    else:
        yield explained.lost


def _op(op: str) -> Any:
    return op
