"""A run's fleet and seats, by what nodes say now and what the ledger knows will come to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from orch.runner.errors import NoFit, RunnerError
from orch.runner.events import Notice
from orch.runner.launch.placement import (
    IDLE,
    NodeAvailability,
    Seat,
    cordoned,
    kept_out,
    misfit,
    no_fit,
    place,
)
from orch.runner.launch.run_plan import plan_of
from orch.runner.node.status import NodeStatus, node_statuses
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.runs.context import RunnerContext
    from orch.spec.models import Task


# A node that says nothing for so long is taken only when no other fits.
CHOICE_S = 5.0


def choose_fleet(
    runner: RunnerContext, task: Task, fleets: Mapping[str, FleetState], wanted: str | None
) -> FleetState:
    """The fleet to run `task` on: `wanted`, or the best of those that fit, of the task's `fleets` if it names
    some. Nodes are asked only where there is a choice; which it was is told.

    Raises NoFit.
    """
    found = fitting(task, fleets, wanted)
    if len(found) == 1:
        return found[0]
    # All at once, so that several silent fleets are waited for once.
    together = found[0].model_copy(update={"nodes": tuple(node for each in found for node in each.nodes)})
    statuses = iter(_ask(runner, together))
    standing = {
        each.name: _standing(runner, each, tuple(islice(statuses, len(each.nodes)))) for each in found
    }
    chosen = choose(task, found, standing)
    among = ", ".join(each.name for each in found)
    runner.processor.handle(Notice(f"chose the fleet {chosen.fleet.name} of {among}: {chosen}"))
    return chosen.fleet


def choose_seats(runner: RunnerContext, task: Task, fleet: FleetState) -> tuple[Seat, ...]:
    """Seats for `task`, by what its fleet's nodes say now and what this ledger knows will come to them."""
    place(task, fleet)  # what can never fit is told without waiting for nodes
    statuses = _ask(runner, fleet)
    standing = _standing(runner, fleet, statuses)
    seats = place(task, fleet, standing)
    for told in filter(None, (cordoned(fleet, standing), kept_out(fleet, standing))):
        runner.processor.handle(Notice(told, "warning"))
    return seats


def _ask(runner: RunnerContext, fleet: FleetState) -> tuple[NodeStatus, ...]:
    return node_statuses(fleet, runner.connector, deadline_s=CHOICE_S, runtimes=runner.runtimes)


def _standing(
    runner: RunnerContext, fleet: FleetState, statuses: Sequence[NodeStatus]
) -> dict[str, NodeAvailability]:
    """What a fleet's nodes say, and what this ledger knows will come to them, by the nodes' names."""
    coming = _coming(runner.ledger, fleet.name)
    standing: dict[str, NodeAvailability] = {}
    for node, status in zip(fleet.nodes, statuses, strict=True):
        claimed = {claim.container for claim in status.claims}
        promised = sum(
            blocks for container, blocks in coming.get(node.name, {}).items() if container not in claimed
        )
        standing[node.name] = NodeAvailability(
            busy=status.busy_blocks + promised,
            usable=status.status not in ("unreachable", "failure"),
            ready=status.status != "provisioning",
            cordon=(status.cordon.reason or str(status.cordon)) if status.cordon else None,
            unfit=status.unfit,
        )
    return standing


def _coming(ledger: Ledger, fleet: str) -> dict[str, dict[str, int]]:
    """Node name -> container -> blocks, of this ledger's active runs: some have not claimed theirs yet."""
    found: dict[str, dict[str, int]] = {}
    for row in ledger.runs(active_only=True):
        if row.fleet != fleet:
            continue
        try:
            plan = plan_of(row)
        except RunnerError:  # another version's; what it has claimed is seen on the nodes
            continue
        for rank in plan.ranks:
            found.setdefault(rank.node.name, {})[plan.container(rank.rank)] = rank.blocks
    return found


# How soon a task would begin on a fleet, the soonest first.
_WORDS = ("on idle nodes", "beside other jobs", "once nodes are free", "once its nodes take jobs")
_AT_ONCE, _SHARED, _LATER, _CLOSED = range(4)


@dataclass(frozen=True)
class FleetOption:
    """A fleet for a task: how soon the task begins there, and the price of what it takes, in dollars an hour.

    A node without an instance type is nobody's to sell and costs nothing; None: a price that is not known.
    """

    fleet: FleetState
    soon: int
    hourly: float | None

    def __str__(self) -> str:
        price = "at a price not known" if self.hourly is None else f"${self.hourly:.2f} per hour"
        return f"{_WORDS[self.soon]}, {price}"


def fitting(task: Task, fleets: Mapping[str, FleetState], wanted: str | None) -> tuple[FleetState, ...]:
    """The fleets that `task` fits on when all of them is idle, of those that are asked for: `wanted`, else
    the task's `fleets` in their order, else all by name.

    Raises NoFit saying what each fleet lacks.
    """
    if not fleets:
        raise NoFit("there is no fleet to run on", hint="run `orch up FILE` first")
    names = (wanted,) if wanted is not None else task.fleets or tuple(sorted(fleets))
    unknown = [name for name in names if name not in fleets]
    if len(unknown) == len(names):
        raise NoFit(
            f"no fleet named {' or '.join(unknown)} is provisioned here",
            detail=f"provisioned: {', '.join(sorted(fleets))}",
            hint="run `orch up FILE` first, or name another fleet with `--fleet`",
        )
    why_not = {name: misfit(task, fleets[name]) for name in names if name in fleets}
    found = tuple(fleets[name] for name, reason in why_not.items() if reason is None)
    if not found:
        raise no_fit(task, {name: reason for name, reason in why_not.items() if reason is not None})
    return found


def choose(
    task: Task, fleets: Sequence[FleetState], standing: Mapping[str, Mapping[str, NodeAvailability]]
) -> FleetOption:
    """The best of fleets that fit: where the task begins soonest, then the cheapest, then the first.

    `standing`: fleet -> node -> what is known of it now.
    """
    options = [_option(task, fleet, standing.get(fleet.name, {})) for fleet in fleets]
    return min(options, key=lambda option: (option.soon, option.hourly is None, option.hourly or 0.0))


def _option(task: Task, fleet: FleetState, now: Mapping[str, NodeAvailability]) -> FleetOption:
    idle = tuple(node for node in fleet.nodes if now.get(node.name, IDLE) == IDLE)
    on_idle = fleet.model_copy(update={"nodes": idle})
    if misfit(task, on_idle) is None:
        return FleetOption(fleet, _AT_ONCE, _price(place(task, on_idle)))
    try:
        seats = place(task, fleet, now)
    except RunnerError:  # cordoned, or its preparation failed: told when nothing else is there
        return FleetOption(fleet, _CLOSED, _price(place(task, fleet)))
    soon = _SHARED if all(_has_room(seat, now.get(seat.node.name, IDLE)) for seat in seats) else _LATER
    return FleetOption(fleet, soon, _price(seats))


def _has_room(seat: Seat, here: NodeAvailability) -> bool:
    return here.usable and here.ready and seat.node.blocks - here.busy >= seat.blocks


def _price(seats: Sequence[Seat]) -> float | None:
    """What the seats' part of their nodes costs."""
    if any(seat.node.instance_type and seat.node.price_hourly is None for seat in seats):
        return None
    return sum((seat.node.price_hourly or 0.0) * seat.blocks / max(1, seat.node.blocks) for seat in seats)
