"""What a task asks for beside resources: backends, places, types, prices, nodes by name. Pure.

They narrow a run to some of the nodes that are there. Only what the task writes counts: the language's
default of `spot_policy` guides what is bought, and excludes no node that exists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from orch.runner.errors import NoFit
from orch.runner.placement.node_fit import Misfit
from orch.runner.placement.slots import is_of_cluster
from orch.spec.grammar.hosts import fold, unfold
from orch.spec.grammar.values import shown
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import few, hint_for

if TYPE_CHECKING:
    from orch.spec.models import Task
    from orch.spec.models.scheduling import InstanceRef


@dataclass(frozen=True)
class Unmet:
    """A condition that a node does not meet. `has`: what the node has in its place, `region us-east-1`.

    `gap`: as in Misfit.
    """

    path: str
    asks: str
    has: str
    gap: float = 1.0


@dataclass(frozen=True)
class Conditions:
    """The conditions of a task. `excluded`: the names in its `exclude_nodes`, unfolded."""

    task: Task
    excluded: frozenset[str]

    @classmethod
    def of(cls, task: Task) -> Conditions:
        return cls(task, frozenset(name for folded in task.exclude_nodes for name in unfold(folded)))

    def unmet(self, fleet: FleetState, node: NodeState) -> tuple[Unmet, ...]:
        """The conditions that `node` of `fleet` does not meet. Zones and types of pods are asked of their
        cluster's scheduler, by labels of its nodes."""
        task, is_pod = self.task, is_of_cluster(node)
        asked: list[tuple[str, Sequence[str], str | None, str]] = [
            ("backends", task.backends, fleet.backend, "backend"),
            ("regions", task.regions, node.region, "region"),
            ("availability_zones", task.availability_zones, node.zone, "zone"),
        ]
        found = [
            Unmet(path, " or ".join(words), f"{noun} {has}" if has is not None else f"no {noun}")
            for path, words, has, noun in asked
            if words and has not in words and not (is_pod and path == "availability_zones")
        ]
        reservation = task.reservation
        if reservation is not None and not in_reservation(node.reservation, reservation):
            has = "no reservation" if node.reservation is None else f"reservation {_short(node.reservation)}"
            found.append(Unmet("reservation", reservation, has))
        patterns, name = task.instance_types, node.instance_type
        if is_pod:
            found += [
                Unmet("instance_types", each, "a scheduler that takes whole names alone")
                for each in patterns
                if set("*?[") & set(each)
            ]
        elif patterns and not (name and any(fnmatchcase(name.lower(), each.lower()) for each in patterns)):
            found.append(
                Unmet("instance_types", " or ".join(patterns), f"type {name}" if name else "no type")
            )
        market = "spot" if node.spot else "on-demand"
        if "spot_policy" in task.model_fields_set and task.spot_policy not in ("auto", market):
            has = "a market that its cluster does not tell" if is_pod else f"the market {market}"
            found.append(Unmet("spot_policy", task.spot_policy, has))
        found += self._price(node)
        if task.instances and not any(names_node(each, fleet, node) for each in task.instances):
            found.append(Unmet("instances", " or ".join(map(text_of, task.instances)), node.name))
        if self.excluded and not self.excluded.isdisjoint(names_of(node)):
            found.append(Unmet("exclude_nodes", "other nodes", node.name))
        return tuple(found)

    def _price(self, node: NodeState) -> list[Unmet]:
        """A node of no type is nobody's offer: it costs nothing. What a pod costs nobody tells."""
        limit = None if self.task.max_price is None else float(self.task.max_price)
        if limit is None or (node.instance_type is None and not is_of_cluster(node)):
            return []
        asks, price = f"${limit:.2f} per hour at most", node.price_hourly
        if price is None:
            return [Unmet("max_price", asks, "no price that is known")]
        return (
            [Unmet("max_price", asks, f"a price of ${price:.2f}", 1 - limit / price)] if price > limit else []
        )


def in_reservation(has: str | None, asked: str) -> bool:
    """Whether what has a reservation has the one asked for, which may be named without GCP's whole path."""
    return has is not None and asked in (has, _short(has))


def _short(reservation: str) -> str:
    return reservation.rpartition("/")[2]


def names_of(node: NodeState) -> frozenset[str]:
    """What a node may be called: its name, its host's name or address, its address in the fleet's network."""
    address = getattr(node.access, "address", None)
    return frozenset(str(name) for name in (node.name, node.internal_ip, address) if name)


def names_node(reference: InstanceRef, fleet: FleetState, node: NodeState) -> bool:
    """Whether an entry of `instances` stands for `node` of `fleet`."""
    if reference.name is not None:
        return reference.name == node.name
    if reference.hostname is not None:
        return reference.hostname in names_of(node)
    return (reference.fleet, reference.instance) == (fleet.name, node.index)


def text_of(reference: InstanceRef) -> str:
    """An entry of `instances` in a message."""
    if reference.instance is not None:
        return f"node {reference.instance} of fleet {reference.fleet}"
    return str(reference.name or reference.hostname)


def summary_of(unmet: Mapping[str, Sequence[Unmet]], paths: Sequence[str], nodes: int) -> str:
    """What the conditions `paths` ask for and what nodes have in their place.

    `unmet`: path -> what nodes of the fleet do not meet; `nodes`: how many nodes the fleet has.
    """
    return "; ".join(_sentence(path, unmet[path], nodes) for path in paths)


def _sentence(path: str, unmet: Sequence[Unmet], nodes: int) -> str:
    values = list(dict.fromkeys(each.has for each in unmet))
    if path == "exclude_nodes":
        return f"`exclude_nodes` leaves out {fold(values)}"
    if path == "instances":
        return f"`instances` asks for {unmet[0].asks}, its other nodes are {fold(values)}"
    have = "its node has" if nodes == 1 else "its nodes have" if len(unmet) == nodes else "other nodes have"
    return f"`{path}` asks for {unmet[0].asks}, {have} {few(values, 3)}"


def check_names(task: Task, fleets: Sequence[FleetState], elsewhere: Collection[str] = ()) -> None:
    """Raises NoFit (ORCH246) for a node in `instances` or `exclude_nodes` that no fleet has.

    `elsewhere`: names of nodes of other fleets. Of folded names at least one must be there: a fleet may be
    without some of its nodes for a time.
    """
    known = {name for fleet in fleets for node in fleet.nodes for name in names_of(node)} | set(elsewhere)
    by_name = {fleet.name: fleet for fleet in fleets}
    for index, reference in enumerate(task.instances):
        path, name = f"instances.{index}", reference.name or reference.hostname
        if name is not None and name not in known:
            raise _unknown(
                f"no fleet here has a node {shown(name)}", fleets, path, hint_for(name, sorted(known))
            )
        if reference.fleet is not None and reference.fleet not in by_name:
            guess = hint_for(reference.fleet, by_name)
            raise _unknown(f"the run may go to no fleet {shown(reference.fleet)}", fleets, path, guess)
        if reference.fleet is not None and not any(
            names_node(reference, by_name[reference.fleet], node) for node in by_name[reference.fleet].nodes
        ):
            raise _unknown(f"fleet {reference.fleet} has no node {reference.instance}", fleets, path, None)
    for index, folded in enumerate(task.exclude_nodes):
        if known.isdisjoint(unfold(folded)):
            summary = f"no fleet here has a node {shown(folded)}"
            raise _unknown(summary, fleets, f"exclude_nodes.{index}", hint_for(folded, sorted(known)))


def _unknown(summary: str, fleets: Sequence[FleetState], path: str, guess: str | None) -> NoFit:
    there = (f"{each.name}: {fold([node.name for node in each.nodes]) or 'no node'}" for each in fleets)
    return NoFit(
        summary,
        detail="; ".join(there),
        hint=guess or "name a node that `orch fleet` lists",
        code="ORCH246",
        path=path,
    )


def misfit_of(unmet: Sequence[Unmet], summary: str) -> Misfit:
    """The reason of a fleet whose nearest node does not meet some conditions."""
    first, *others = (each.path for each in unmet)
    return Misfit(summary, path=first, others=tuple(others), gap=min(1.0, sum(each.gap for each in unmet)))
