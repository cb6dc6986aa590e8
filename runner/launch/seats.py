"""A run's fleet and seats, by what nodes say now and what the ledger knows will come to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from orch.runner.errors import RunnerError
from orch.runner.events import Notice
from orch.runner.launch.fleet_choice import choose, fitting
from orch.runner.launch.placement import Seat, Standing, cordoned, kept_out, place
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
    workplace: RunnerContext, task: Task, fleets: Mapping[str, FleetState], wanted: str | None
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
    statuses = iter(_ask(workplace, together))
    standing = {
        each.name: _standing(workplace, each, tuple(islice(statuses, len(each.nodes)))) for each in found
    }
    chosen = choose(task, found, standing)
    among = ", ".join(each.name for each in found)
    workplace.processor.handle(Notice(f"chose the fleet {chosen.fleet.name} of {among}: {chosen}"))
    return chosen.fleet


def choose_seats(workplace: RunnerContext, task: Task, fleet: FleetState) -> tuple[Seat, ...]:
    """Seats for `task`, by what its fleet's nodes say now and what this ledger knows will come to them."""
    place(task, fleet)  # what can never fit is told without waiting for nodes
    statuses = _ask(workplace, fleet)
    standing = _standing(workplace, fleet, statuses)
    seats = place(task, fleet, standing)
    for told in filter(None, (cordoned(fleet, standing), kept_out(fleet, standing))):
        workplace.processor.handle(Notice(told, "warning"))
    return seats


def _ask(workplace: RunnerContext, fleet: FleetState) -> tuple[NodeStatus, ...]:
    return node_statuses(fleet, workplace.connector, deadline_s=CHOICE_S, runtimes=workplace.runtimes)


def _standing(
    workplace: RunnerContext, fleet: FleetState, statuses: Sequence[NodeStatus]
) -> dict[str, Standing]:
    """What a fleet's nodes say, and what this ledger knows will come to them, by the nodes' names."""
    coming = _coming(workplace.ledger, fleet.name)
    standing: dict[str, Standing] = {}
    for node, status in zip(fleet.nodes, statuses, strict=True):
        claimed = {claim.container for claim in status.claims}
        promised = sum(
            blocks for container, blocks in coming.get(node.name, {}).items() if container not in claimed
        )
        standing[node.name] = Standing(
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
