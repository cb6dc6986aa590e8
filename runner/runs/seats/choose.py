"""Choose a run's fleet and nodes by their status now and the claims that active runs have still to make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from orch.runner.errors import HostUnreachable, NodesBusy, NoFit, RunnerError
from orch.runner.events import Notice
from orch.runner.ledger.plans import plan_of
from orch.runner.node.status import CHOICE_S, node_statuses
from orch.runner.node_api.status import NodeStatus
from orch.runner.placement.availability import IDLE, NodeAvailability
from orch.runner.placement.conditions import check_names
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.placement import (
    cordoned_message,
    misfit,
    no_fit,
    place_task,
    unfit_message,
    unhealthy_message,
)
from orch.runner.placement.rank_groups import place_of_fleet, requested_fleets
from orch.runner.placement.slots import is_of_cluster, is_slot
from orch.runner.placement.spares import held_back, held_message
from orch.runner.plan.run_plan import RunPlan
from orch.runner.processes import here
from orch.spec.grammar.hosts import fold
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted, few, hint_for

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.context import RunContext, RunnerContext
    from orch.runner.runs.seats.early_look import EarlyLook
    from orch.spec.models import Task

WhySilent = Callable[[FleetState, Sequence[str]], Mapping[str, str]]
"""Why nodes of a fleet do not answer, by name, as far as that is known without asking them."""

# What a run needs and what did not answer within CHOICE_S gets this time before the run is refused.
PATIENT_S = 15.0


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

    Names of its nodes: those that nothing runs on and that are no spares (`idle`), that do not answer
    (`silent`), that their cloud takes back or works on (`leaving`), and whose preparation or health failed
    (`unfit`).
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
    idle -= held_back(fleet, availability)
    named = {node.name: status for node, status in zip(fleet.nodes, statuses, strict=True)}
    silent = frozenset(name for name, status in named.items() if status.status == "unreachable")
    leaving = frozenset(name for name, status in named.items() if status.cordon and status.cordon.of_cloud)
    unfit = frozenset(name for name, each in availability.items() if each.unfit or each.unhealthy)
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
    why_silent: WhySilent | None = None,
    examines: bool = False,
) -> tuple[Seat, ...]:
    """Seats for `task` on free nodes, by their present status; of those, the ones with the least in `failed`
    are taken. Nodes there, and those that have not passed the fleet's gate, are examined first.
    `answering`: silent nodes are not waited for. `released_at`: when a run last left nodes; with it, what the
    nodes said to this process a moment ago, and since then, will do. `early_look`: one that has begun, whose
    answer will do too. `why_silent`: with it a run that needs silent nodes is refused, after those that it
    cannot explain were asked once more. `examines`: the run examines nodes, so their health counts for none.

    Raises NoFit, NodeUnfit, NodeCordoned, NodesBusy where other runs have the nodes; with `answering`
    HostUnreachable where nodes that are needed do not answer, or can run nothing.
    """
    place_task(task, fleet)  # a task that can never fit fails without waiting for nodes
    if examines:
        fleet = fleet.model_copy(update={"health": None})
    recent = runner.recent_statuses
    if recent is None or released_at is None:
        known = early_look.answer(fleet) if early_look is not None else None
        statuses = known if known is not None else _node_statuses(runner, fleet)
        statuses = _through_gate(runner, fleet, statuses, failed)
    else:
        statuses = recent.of(
            fleet,
            released_at,
            lambda: _through_gate(runner, fleet, _node_statuses(runner, fleet), failed),
        )
    availability = {
        name: replace(each, failed=failed.get(name, 0))
        for name, each in _availability(runner, fleet, statuses, examines=examines).items()
    }
    seats = place_task(task, fleet, availability)
    if why_silent is not None and (silent := _silent(seats, fleet, statuses)):
        statuses = _ask_again(runner, fleet, silent, statuses, why_silent)
        availability = _availability(runner, fleet, statuses, examines=examines)
        seats = place_task(task, fleet, availability)
    if answering:
        _require_answers(seats, availability)
    _require_free(seats, availability, held_message(fleet, held_back(fleet, availability)))
    told = (told(fleet, availability) for told in (cordoned_message, unfit_message, unhealthy_message))
    for message in filter(None, told):
        runner.processor.handle(Notice(message, "warning"))
    return seats


def crowded(seats: Sequence[Seat], rows: Sequence[RunRow]) -> bool:
    """Whether these active runs leave too little of a seat's node for it."""
    used: dict[str, int] = {}
    for _, plan in _with_plans(rows):
        for rank in plan.ranks:
            used[rank.node.name] = used.get(rank.node.name, 0) + rank.blocks
    return any(seat.node.blocks - used.get(seat.node.name, 0) < seat.blocks for seat in seats)


def _needed(seats: Sequence[Seat]) -> str:
    return f"the run needs {counted(len(seats), 'node')}"


def _require_answers(seats: Sequence[Seat], availability: Mapping[str, NodeAvailability]) -> None:
    silent = [seat.node.name for seat in seats if not availability[seat.node.name].usable]
    if silent:
        raise HostUnreachable(
            f"{_needed(seats)}, {len(seats) - len(silent)} can be used",
            detail=f"{fold(silent)} {'does' if len(silent) == 1 else 'do'} not answer, or can run nothing",
        )


def _silent(
    seats: Sequence[Seat], fleet: FleetState, statuses: Sequence[NodeStatus]
) -> tuple[NodeState, ...]:
    """The nodes of these seats that do not answer."""
    wanted = {seat.node.name for seat in seats}
    pairs = zip(fleet.nodes, statuses, strict=True)
    return tuple(node for node, status in pairs if status.status == "unreachable" and node.name in wanted)


def _ask_again(
    runner: RunnerContext | RunContext,
    fleet: FleetState,
    silent: Sequence[NodeState],
    statuses: Sequence[NodeStatus],
    why_silent: WhySilent,
) -> tuple[NodeStatus, ...]:
    """The statuses of a fleet's nodes, in their order, after those that did not answer were given more time.

    Raises HostUnreachable where nodes stay silent, at once where it is known why."""
    present = {node.name: status for node, status in zip(fleet.nodes, statuses, strict=True)}
    reasons = why_silent(fleet, [node.name for node in silent])
    if not reasons:
        names = fold([node.name for node in silent])
        runner.processor.handle(Notice(f"{names} of fleet {fleet.name}: no answer yet"))
        again = _node_statuses(
            runner, fleet.model_copy(update={"nodes": tuple(silent)}), deadline_s=PATIENT_S
        )
        present |= {node.name: status for node, status in zip(silent, again, strict=True)}
        reasons = {
            node.name: present[node.name].reason or "no answer"
            for node in silent
            if present[node.name].status == "unreachable"
        }
    if reasons:
        by_reason: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            by_reason.setdefault(reason, []).append(name)
        nodes = "node" if len(reasons) == 1 else "nodes"
        verb = "does" if len(reasons) == 1 else "do"
        raise HostUnreachable(
            f"{nodes} {fold(list(reasons))} of fleet {fleet.name} {verb} not answer",
            detail="; ".join(f"{fold(names)}: {reason}" for reason, names in by_reason.items()),
            hint=f"`orch up FILE` with the file of fleet {fleet.name} mends its nodes; "
            "`--wait` has this run wait for them",
        )
    return tuple(present[node.name] for node in fleet.nodes)


def _require_free(
    seats: Sequence[Seat], availability: Mapping[str, NodeAvailability], held: str | None
) -> None:
    # One that is still being prepared is waited for when the run starts.
    short = [seat for seat in seats if seat.node.blocks - availability[seat.node.name].busy < seat.blocks]
    if short:
        busy = fold([name for name, each in availability.items() if each.busy])
        holders = dict.fromkeys(run for each in availability.values() for run in each.holders if run)
        by = f" by {few(holders, 4)}" if holders else ""
        free = len(seats) - len(short)
        raise NodesBusy(
            f"{_needed(seats)}, {free} {'is' if free == 1 else 'are'} free",
            detail=f"in use: {busy}{by}" + (f"; {held}" if held else ""),
            hint="`--wait` has this run wait in line; `orch ps` shows the runs of this project",
        )


def _node_statuses(
    runner: RunnerContext | RunContext, fleet: FleetState, *, deadline_s: float = CHOICE_S
) -> tuple[NodeStatus, ...]:
    there = tuple(node for node in fleet.nodes if not is_slot(node))
    asked = fleet if len(there) == len(fleet.nodes) else fleet.model_copy(update={"nodes": there})
    statuses = node_statuses(asked, runner.connector, deadline_s=deadline_s, runtimes=runner.runtimes)
    known = iter(statuses)
    # Whether there is room for the pods of a run is for their cluster to say.
    return tuple(NodeStatus("idle") if is_slot(node) else next(known) for node in fleet.nodes)


def _through_gate(
    runner: RunnerContext | RunContext,
    fleet: FleetState,
    statuses: tuple[NodeStatus, ...],
    failed: Collection[str],
) -> tuple[NodeStatus, ...]:
    """The statuses after nodes were examined that have not passed the fleet's gate, and those where the run
    failed."""
    if fleet.health is None or fleet.health.gate == "none":
        return statuses
    if not failed and all(each.has_passed(fleet.health.gate) for each in statuses):
        return statuses  # what examines is not even loaded
    from orch.runner.health.gate import through_gate

    return through_gate(fleet, statuses, runner.connector, runner.processor, suspects=failed)


def _availability(
    runner: RunnerContext | RunContext,
    fleet: FleetState,
    statuses: Sequence[NodeStatus],
    *,
    examines: bool = False,
) -> dict[str, NodeAvailability]:
    """Node name -> its availability: its own answer, and the claims that active runs have still to make."""
    pending = _pending_claims(runner.ledger, fleet.name)
    availability: dict[str, NodeAvailability] = {}
    for node, status in zip(fleet.nodes, statuses, strict=True):
        claimed = {claim.container for claim in status.claims}
        expected = [
            claim for container, claim in pending.get(node.name, {}).items() if container not in claimed
        ]
        now = NodeAvailability.of(status)
        availability[node.name] = replace(
            now,
            busy=now.busy + sum(blocks for _, blocks in expected),
            unhealthy=None if examines else now.unhealthy,
            holders=(*now.holders, *(run for run, _ in expected)),
        )
    return availability


def _holder(row: RunRow) -> str:
    """As `Claim.holder` names it."""
    return row.name if row.submitted_by == here() else f"{row.name} of {row.submitted_by}"


def _with_plans(rows: Iterable[RunRow]) -> Iterator[tuple[RunRow, RunPlan]]:
    """Without those of another version; what they have claimed is seen on the nodes."""
    for row in rows:
        with suppress(RunnerError):
            yield row, plan_of(row)


def _pending_claims(ledger: Ledger, fleet: str) -> dict[str, dict[str, tuple[str, int]]]:
    """Node name -> container -> run and blocks, of this ledger's active runs; some have not claimed theirs
    yet."""
    pending: dict[str, dict[str, tuple[str, int]]] = {}
    for row, plan in _with_plans(ledger.placed_on(fleet)):
        for rank in plan.ranks:
            pending.setdefault(rank.node.name, {})[plan.container(rank.rank)] = _holder(row), rank.blocks
    return pending


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
