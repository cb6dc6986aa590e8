"""What a fleet costs before and after a plan, and at the most that its file allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orch.components.deployment import Deployment
from orch.review.model import Cost, NodeGroup
from orch.spec.models import Fleet
from orch.stacks.plan import Plan
from orch.stacks.summary import fold


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
