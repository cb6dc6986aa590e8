"""The choice of a fleet for a task: the fleets that fit it, and the best of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.runner.errors import NodesBusy, NoFit, RunnerError
from orch.runner.placement.availability import IDLE, NodeAvailability
from orch.runner.placement.conditions import check_names
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.placement import misfit, no_fit, place_task
from orch.runner.placement.rank_groups import place_of_fleet, requested_fleets
from orch.runner.placement.slots import is_of_cluster
from orch.runner.placement.spares import held_back
from orch.spec.state import FleetState
from orch.spec.suggest import hint_for

if TYPE_CHECKING:
    from orch.spec.models import Task

# How soon a task would start on a fleet, the soonest first.
_START_TEXTS = ("on idle nodes", "beside other jobs", "once nodes are free", "once its nodes take jobs")
_IDLE, _SHARED, _LATER, _CLOSED = range(4)


@dataclass(frozen=True)
class FleetOption:
    """A fleet that fits a task: how soon the task starts there, and the price of its nodes in USD per hour.

    `start` is an index of _START_TEXTS. `hourly` is None where a price is not known, as of pods; another node
    without an instance type costs nothing.
    """

    fleet: FleetState
    start: int
    hourly: float | None

    @property
    def starts_now(self) -> bool:
        """The task starts there without waiting for other jobs."""
        return self.start in (_IDLE, _SHARED)

    def __str__(self) -> str:
        price = "at a price not known" if self.hourly is None else f"${self.hourly:.2f} per hour"
        return f"{_START_TEXTS[self.start]}, {price}"


def fitting(
    task: Task,
    fleets: Mapping[str, FleetState],
    requested: str | None,
    *,
    elsewhere: Collection[str] = (),
) -> tuple[FleetState, ...]:
    """The fleets that `task` fits on when they are idle: among `requested`, else the task's `fleets` in
    their order, else all fleets by name. `elsewhere` as in `choose_fleet`.

    Raises NoFit saying what each fleet lacks.
    """
    if not fleets:
        raise NoFit("there is no fleet to run on", hint="run `orch up FILE` first")
    names = (requested,) if requested is not None else requested_fleets(task) or tuple(sorted(fleets))
    unknown = [name for name in names if name not in fleets]
    if len(unknown) == len(names):
        raise NoFit(
            f"no fleet named {' or '.join(unknown)} is provisioned here",
            detail=f"provisioned: {', '.join(sorted(fleets))}",
            hint=hint_for(unknown[0], sorted(fleets))
            or "run `orch up FILE` first, or name another fleet with `--fleet`",
            code="ORCH353",
            path=place_of_fleet(task, unknown[0]),
        )
    check_names(task, [fleets[name] for name in names if name in fleets], elsewhere)
    misfits = {name: misfit(task, fleets[name]) for name in names if name in fleets}
    fleets_that_fit = tuple(fleets[name] for name, reason in misfits.items() if reason is None)
    if not fleets_that_fit:
        raise no_fit(task, {name: reason for name, reason in misfits.items() if reason is not None})
    return fleets_that_fit


def choose(
    task: Task, fleets: Sequence[FleetState], availability: Mapping[str, Mapping[str, NodeAvailability]]
) -> FleetOption:
    """The best fleet that fits: where the task starts soonest, then the cheapest, then the first.

    `availability`: fleet name -> node name -> its availability.
    """
    options = [option(task, fleet, availability.get(fleet.name, {})) for fleet in fleets]
    return min(options, key=lambda option: (option.start, option.hourly is None, option.hourly or 0.0))


def option(task: Task, fleet: FleetState, availability: Mapping[str, NodeAvailability]) -> FleetOption:
    held = held_back(fleet, availability)
    idle = tuple(
        node for node in fleet.nodes if availability.get(node.name, IDLE) == IDLE and node.name not in held
    )
    on_idle = fleet.model_copy(update={"nodes": idle, "spares": None})
    if misfit(task, on_idle) is None:
        return FleetOption(fleet, _IDLE, _price(place_task(task, on_idle)))
    try:
        seats = place_task(task, fleet, availability)
    except NodesBusy:  # beside them there are spares
        return FleetOption(fleet, _LATER, _price(place_task(task, fleet)))
    except RunnerError:  # cordoned, or its preparation failed: told when nothing else is there
        return FleetOption(fleet, _CLOSED, _price(place_task(task, fleet)))
    start = (
        _SHARED if all(_has_room(seat, availability.get(seat.node.name, IDLE)) for seat in seats) else _LATER
    )
    return FleetOption(fleet, start, _price(seats))


def _has_room(seat: Seat, available: NodeAvailability) -> bool:
    return available.usable and available.ready and seat.node.blocks - available.busy >= seat.blocks


def _price(seats: Sequence[Seat]) -> float | None:
    """USD per hour for the blocks of these seats; None where a price is not known."""
    if any(
        (seat.node.instance_type or is_of_cluster(seat.node)) and seat.node.price_hourly is None
        for seat in seats
    ):
        return None
    return sum((seat.node.price_hourly or 0.0) * seat.blocks / max(1, seat.node.blocks) for seat in seats)
