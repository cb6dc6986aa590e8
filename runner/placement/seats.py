"""Choose a run's fleet and nodes by their status now and the claims that active runs have still to make."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from orch.runner.errors import HostUnreachable, NodesBusy, NoFit, RunnerError
from orch.runner.events import Notice
from orch.runner.launch.environment import fold
from orch.runner.launch.run_plan import plan_of
from orch.runner.node.status import CHOICE_S, NodeStatus, node_statuses
from orch.runner.placement.conditions import check_names
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.placement import (
    IDLE,
    NodeAvailability,
    cordoned_message,
    misfit,
    no_fit,
    place_task,
    unfit_message,
)
from orch.runner.placement.rank_groups import place_of_fleet, requested_fleets
from orch.runner.processes import here
from orch.spec.state import FleetState
from orch.spec.suggest import counted, few, hint_for

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.ledger.records import RunRow
    from orch.runner.placement.early_look import EarlyLook
    from orch.runner.runs.context import RunContext, RunnerContext
    from orch.spec.models import Task


def choose_fleet(
    runner: RunnerContext,
    task: Task,
    fleets: Mapping[str, FleetState],
    requested: str | None,
    *,
    elsewhere: Collection[str] = (),
) -> FleetState:
    """The fleet to run `task` on: `requested`, else the best that fits, among the task's `fleets` if set.

    `elsewhere`: names of nodes of fleets that are not among `fleets`; a task may exclude them all the same.
    Nodes are asked only where several fleets fit; a notice then names the choice. Raises NoFit.
    """
    candidates = fitting(task, fleets, requested, elsewhere=elsewhere)
    if len(candidates) == 1:
        return candidates[0]
    # All at once, so that several silent fleets are waited for once.
    all_nodes = candidates[0].model_copy(
        update={"nodes": tuple(node for each in candidates for node in each.nodes)}
    )
    statuses = iter(_node_statuses(runner, all_nodes))
    availability = {
        each.name: _availability(runner, each, tuple(islice(statuses, len(each.nodes))))
        for each in candidates
    }
    best = choose(task, candidates, availability)
    names = ", ".join(each.name for each in candidates)
    runner.processor.handle(Notice(f"chose the fleet {best.fleet.name} of {names}: {best}"))
    return best.fleet


@dataclass(frozen=True)
class FreeNow:
    """Whether a task can start on a fleet at this moment, or when nodes that are being prepared are ready.

    Names of its nodes: those that nothing runs on (`idle`), that do not answer (`silent`), that their cloud
    takes back or works on (`leaving`), and whose preparation failed (`unfit`).
    """

    starts: bool
    idle: frozenset[str]
    silent: frozenset[str]
    leaving: frozenset[str]
    unfit: frozenset[str]


def free_now(runner: RunnerContext | RunContext, task: Task, fleet: FleetState) -> FreeNow:
    statuses = _node_statuses(runner, fleet)
    # A node in its first boot is as good as an idle one: a run waits for it, and another one is not needed.
    availability = {
        name: replace(each, ready=True) for name, each in _availability(runner, fleet, statuses).items()
    }
    starts = misfit(task, fleet) is None and _option(task, fleet, availability).start in (_IDLE, _SHARED)
    idle = frozenset(name for name, each in availability.items() if each == IDLE)
    named = {node.name: status for node, status in zip(fleet.nodes, statuses, strict=True)}
    silent = frozenset(name for name, status in named.items() if status.status == "unreachable")
    leaving = frozenset(name for name, status in named.items() if status.cordon and status.cordon.of_cloud)
    unfit = frozenset(name for name, each in availability.items() if each.unfit)
    return FreeNow(starts, idle, silent, leaving, unfit)


def choose_seats(
    runner: RunnerContext | RunContext,
    task: Task,
    fleet: FleetState,
    *,
    answering: bool = False,
    failed: Mapping[str, int] = MappingProxyType({}),
    released_at: float | None = None,
    early_look: EarlyLook | None = None,
) -> tuple[Seat, ...]:
    """Seats for `task` on free nodes, by their present status; of those, the ones with the least in `failed`
    are taken. `answering`: silent nodes are not waited for. `released_at`: when a run last left nodes; with
    it, what the nodes said to this process a moment ago, and since then, will do. `early_look`: one that has
    begun, whose answer will do too.

    Raises NoFit, NodeUnfit, NodeCordoned, NodesBusy where other runs have the nodes; with `answering`
    HostUnreachable where nodes that are needed do not answer, or can run nothing.
    """
    place_task(task, fleet)  # a task that can never fit fails without waiting for nodes
    recent = runner.recent_statuses
    if recent is None or released_at is None:
        known = early_look.answer(fleet) if early_look is not None else None
        statuses = known if known is not None else _node_statuses(runner, fleet)
    else:
        statuses = recent.of(fleet, released_at, lambda: _node_statuses(runner, fleet))
    availability = {
        name: replace(each, failed=failed.get(name, 0))
        for name, each in _availability(runner, fleet, statuses).items()
    }
    seats = place_task(task, fleet, availability)
    if answering:
        _require_answers(seats, availability)
    _require_free(seats, availability)
    for message in filter(None, (cordoned_message(fleet, availability), unfit_message(fleet, availability))):
        runner.processor.handle(Notice(message, "warning"))
    return seats


def _needed(seats: Sequence[Seat]) -> str:
    return f"the run needs {counted(len(seats), 'node')}"


def _require_answers(seats: Sequence[Seat], availability: Mapping[str, NodeAvailability]) -> None:
    silent = [seat.node.name for seat in seats if not availability[seat.node.name].usable]
    if silent:
        raise HostUnreachable(
            f"{_needed(seats)}, {len(seats) - len(silent)} can be used",
            detail=f"{fold(silent)} {'does' if len(silent) == 1 else 'do'} not answer, or can run nothing",
        )


def _require_free(seats: Sequence[Seat], availability: Mapping[str, NodeAvailability]) -> None:
    # One that is still being prepared is waited for when the run starts.
    short = [seat for seat in seats if seat.node.blocks - availability[seat.node.name].busy < seat.blocks]
    if short:
        busy = fold([name for name, each in availability.items() if each.busy])
        holders = dict.fromkeys(run for each in availability.values() for run in each.holders if run)
        by = f" by {few(holders, 4)}" if holders else ""
        free = len(seats) - len(short)
        raise NodesBusy(
            f"{_needed(seats)}, {free} {'is' if free == 1 else 'are'} free",
            detail=f"in use: {busy}{by}",
            hint="`--wait` has this run wait in line; `orch ps` shows the runs of this project",
        )


def _node_statuses(runner: RunnerContext | RunContext, fleet: FleetState) -> tuple[NodeStatus, ...]:
    return node_statuses(fleet, runner.connector, deadline_s=CHOICE_S, runtimes=runner.runtimes)


def _availability(
    runner: RunnerContext | RunContext, fleet: FleetState, statuses: Sequence[NodeStatus]
) -> dict[str, NodeAvailability]:
    """Node name -> its availability: its own answer, and the claims that active runs have still to make."""
    pending = _pending_claims(runner.ledger, fleet.name)
    availability: dict[str, NodeAvailability] = {}
    for node, status in zip(fleet.nodes, statuses, strict=True):
        claimed = {claim.container for claim in status.claims}
        expected = [
            claim for container, claim in pending.get(node.name, {}).items() if container not in claimed
        ]
        availability[node.name] = NodeAvailability(
            busy=status.busy_blocks + sum(blocks for _, blocks in expected),
            usable=status.status not in ("unreachable", "failure"),
            ready=status.status != "provisioning",
            cordon=(status.cordon.reason or str(status.cordon)) if status.cordon else None,
            unfit=status.unfit,
            holders=(*(claim.holder for claim in status.claims), *(run for run, _ in expected)),
        )
    return availability


def _holder(row: RunRow) -> str:
    """As `Claim.holder` names it."""
    return row.name if row.submitted_by == here() else f"{row.name} of {row.submitted_by}"


def _pending_claims(ledger: Ledger, fleet: str) -> dict[str, dict[str, tuple[str, int]]]:
    """Node name -> container -> run and blocks, of this ledger's active runs; some have not claimed theirs
    yet."""
    pending: dict[str, dict[str, tuple[str, int]]] = {}
    for row in ledger.placed_on(fleet):
        try:
            plan = plan_of(row)
        except RunnerError:  # another version's; what it has claimed is seen on the nodes
            continue
        for rank in plan.ranks:
            pending.setdefault(rank.node.name, {})[plan.container(rank.rank)] = _holder(row), rank.blocks
    return pending


# How soon a task would start on a fleet, the soonest first.
_START_TEXTS = ("on idle nodes", "beside other jobs", "once nodes are free", "once its nodes take jobs")
_IDLE, _SHARED, _LATER, _CLOSED = range(4)


@dataclass(frozen=True)
class FleetOption:
    """A fleet that fits a task: how soon the task starts there, and the price of its nodes in USD per hour.

    `start` is an index of _START_TEXTS. `hourly` is None where a price is not known; a node without an
    instance type costs nothing.
    """

    fleet: FleetState
    start: int
    hourly: float | None

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
    options = [_option(task, fleet, availability.get(fleet.name, {})) for fleet in fleets]
    return min(options, key=lambda option: (option.start, option.hourly is None, option.hourly or 0.0))


def _option(task: Task, fleet: FleetState, availability: Mapping[str, NodeAvailability]) -> FleetOption:
    idle = tuple(node for node in fleet.nodes if availability.get(node.name, IDLE) == IDLE)
    on_idle = fleet.model_copy(update={"nodes": idle})
    if misfit(task, on_idle) is None:
        return FleetOption(fleet, _IDLE, _price(place_task(task, on_idle)))
    try:
        seats = place_task(task, fleet, availability)
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
    if any(seat.node.instance_type and seat.node.price_hourly is None for seat in seats):
        return None
    return sum((seat.node.price_hourly or 0.0) * seat.blocks / max(1, seat.node.blocks) for seat in seats)
