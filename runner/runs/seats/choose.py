"""Choose a run's fleet and nodes by their status now and the claims that active runs have still to make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from orch.runner.errors import HostUnreachable, NodesBusy, RunnerError
from orch.runner.events import Notice
from orch.runner.ledger.plans import plan_of
from orch.runner.node.status import CHOICE_S, node_statuses
from orch.runner.node_api.status import NodeStatus
from orch.runner.placement.availability import IDLE, NodeAvailability
from orch.runner.placement.fleets import choose, fitting, option
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.placement import (
    cordoned_message,
    misfit,
    place_task,
    unfit_message,
    unhealthy_message,
)
from orch.runner.placement.slots import is_slot
from orch.runner.placement.spares import held_back, held_message
from orch.runner.plan.run_plan import RunPlan
from orch.runner.processes import here
from orch.spec.grammar.hosts import fold
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted, few

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
    starts = misfit(task, fleet) is None and option(task, fleet, availability).starts_now
    idle = frozenset(name for name, each in availability.items() if each == IDLE)
    idle -= held_back(fleet, availability)
    named = {node.name: status for node, status in zip(fleet.nodes, statuses, strict=True)}
    silent = frozenset(name for name, status in named.items() if status.status == "unreachable")
    leaving = frozenset(name for name, status in named.items() if status.cordon and status.cordon.of_cloud)
    unfit = frozenset(name for name, each in availability.items() if each.unfit or each.unhealthy)
    return FreeNow(starts, idle, silent, leaving, unfit)


@dataclass(frozen=True)
class SeatSearch:
    """How seats are searched for.

    `answering`: silent nodes are not waited for. `failed`: what speaks against nodes because the run failed
    there; they are examined first, and taken last. `released_at`: when a run last left nodes; with it, what
    the nodes said to this process a moment ago, and since then, will do. `early_look`: a look that has begun,
    whose answer will do too. `why_silent`: with it a run that needs silent nodes is refused, after those that
    it cannot explain were asked once more. `examines`: the run examines nodes, so their health counts for
    none.
    """

    answering: bool = False
    failed: Mapping[str, int] = field(default_factory=dict[str, int])
    released_at: float | None = None
    early_look: EarlyLook | None = None
    why_silent: WhySilent | None = None
    examines: bool = False


def choose_seats(
    runner: RunnerContext | RunContext, task: Task, fleet: FleetState, search: SeatSearch
) -> tuple[Seat, ...]:
    """Return seats for `task` on free nodes, by their present status. Nodes that have not passed the fleet's
    gate are examined first.

    Raises NoFit, NodeUnfit, NodeCordoned, NodesBusy if other runs have the nodes; with `answering`
    HostUnreachable if nodes that are needed do not answer, or can run nothing.
    """
    place_task(task, fleet)  # a task that can never fit fails without waiting for nodes
    failed = search.failed
    if search.examines:
        fleet = fleet.model_copy(update={"health": None})
    recent = runner.recent_statuses
    if recent is None or search.released_at is None:
        known = search.early_look.answer(fleet) if search.early_look is not None else None
        statuses = known if known is not None else _node_statuses(runner, fleet)
        statuses = _through_gate(runner, fleet, statuses, failed)
    else:
        statuses = recent.of(
            fleet,
            search.released_at,
            lambda: _through_gate(runner, fleet, _node_statuses(runner, fleet), failed),
        )
    availability = {
        name: replace(each, failed=failed.get(name, 0))
        for name, each in _availability(runner, fleet, statuses, examines=search.examines).items()
    }
    seats = place_task(task, fleet, availability)
    if search.why_silent is not None and (silent := _silent(seats, fleet, statuses)):
        statuses = _ask_again(runner, fleet, silent, statuses, search.why_silent)
        availability = _availability(runner, fleet, statuses, examines=search.examines)
        seats = place_task(task, fleet, availability)
    if search.answering:
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
