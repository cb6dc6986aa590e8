"""The groups of a task's ranks: nodes that are alike, as its `groups` or its `nodes` ask for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orch.spec.models import Task
    from orch.spec.models.mounts import PortMapping
    from orch.spec.models.resources import Resources


@dataclass(frozen=True)
class RankGroup:
    """Ranks of a run that are alike.

    `name`: the group's name, its number where it has none; None for a task without groups. `place`: what
    leads to its properties in the file, `groups.1.`. `nodes`: how many ranks, `all_nodes`: of the whole run.
    `env` holds the task's variables too. `fleets`: those that may run the group, all if empty. `ports`: those
    of the job of its first rank.
    """

    name: str | None
    place: str
    nodes: int
    all_nodes: int
    resources: Resources
    commands: tuple[str, ...]
    env: Mapping[str, str | None]
    fleets: tuple[str, ...] = ()
    ports: tuple[PortMapping, ...] = ()

    @property
    def distributed(self) -> bool:
        """Whether its ranks are of a run of several nodes: each takes all of its node."""
        return self.all_nodes > 1

    def allows(self, fleet: str) -> bool:
        """Whether it may run on `fleet`."""
        return not self.fleets or fleet in self.fleets

    @property
    def noun(self) -> str:
        """What messages call it: `the task`, `group worker`."""
        return "the task" if self.name is None else f"group {self.name}"


def rank_groups(task: Task) -> tuple[RankGroup, ...]:
    """The groups of `task` in rank order; one group for a task that has none."""
    total = task.all_nodes
    if not task.groups:
        return (
            RankGroup(None, "", task.nodes, total, task.resources, task.commands, task.env, (), task.ports),
        )
    return tuple(
        RankGroup(
            group.name or str(index),
            f"groups.{index}.",
            group.nodes,
            total,
            group.resources,
            group.commands,
            {**task.env, **group.env},
            group.fleets,
            group.ports,
        )
        for index, group in enumerate(task.groups)
    )


def group_of_rank(groups: tuple[RankGroup, ...]) -> tuple[RankGroup, ...]:
    """The group of each rank, in rank order."""
    return tuple(group for group in groups for _ in range(group.nodes))


def first_ranks(groups: tuple[RankGroup, ...]) -> tuple[int, ...]:
    """The first rank of each group: the one that the group's ports lead to."""
    return tuple(accumulate((group.nodes for group in groups[:-1]), initial=0))


def requested_fleets(task: Task) -> tuple[str, ...]:
    """The fleets that `task` or its groups name, each once; empty where any fleet may run it."""
    return tuple(dict.fromkeys((*task.fleets, *(name for group in task.groups for name in group.fleets))))


def place_of_fleet(task: Task, name: str) -> str:
    """The path of the entry that names the fleet `name`; of `fleets` where none does."""
    lists = {
        "fleets": task.fleets,
        **{f"groups.{i}.fleets": each.fleets for i, each in enumerate(task.groups)},
    }
    return next((f"{path}.{names.index(name)}" for path, names in lists.items() if name in names), "fleets")


def on_fleet(task: Task, name: str) -> Task:
    """The same task with the fleet `name` in place of those that it and its groups name."""
    groups = tuple(group.model_copy(update={"fleets": ()}) for group in task.groups)
    return task.model_copy(update={"fleets": (name,), "groups": groups})


def node_addresses(groups: tuple[RankGroup, ...], addresses: tuple[str, ...]) -> dict[str, str]:
    """`groups[i].nodes[j].IP_ADDRESS` -> address, for a task with groups. `addresses` is in rank order."""
    values: dict[str, str] = {}
    rank = 0
    for index, group in enumerate(groups):
        for node in range(group.nodes if group.name is not None else 0):
            values[f"groups[{index}].nodes[{node}].IP_ADDRESS"] = addresses[rank]
            rank += 1
    return values
