"""The gate of new nodes: those that are ready when `up` ends are examined at once."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from orch.cli.errors import tell

if TYPE_CHECKING:
    from orch.stacks.plan import Plan
    from orch.stacks.project import Project


def pass_gate(project: Project, plan: Plan) -> bool:
    """Examine the nodes of a fleet that have not passed its gate, and tell what was found; whether any
    failed.

    Nodes of a cloud begin to prepare themselves when `up` ends: who gives them their first job examines them,
    and so do `orch reconcile` and a controller. Without a ledger that can be written none is examined here.
    """
    from orch.cli.runs.opening import connector_of
    from orch.runner.errors import LedgerUnusable
    from orch.runner.health.gate import depth_of
    from orch.runner.ledger.ledger import open_ledger
    from orch.spec.state import OF_THE_USER
    from orch.stacks.fleets import fleet_of
    from orch.stacks.health.watch import news, watch
    from orch.stacks.state import StackState

    stack = StackState(project, plan.stack)
    if not plan.pending or not stack.nodes or stack.outputs["fleet"]["backend"] not in OF_THE_USER:
        return False
    fleet = fleet_of(stack)
    health = fleet.health
    if health is None or health.gate == "none":
        return False
    try:
        with closing(connector_of(project)) as connector, closing(open_ledger(project.ledger_url)) as ledger:
            watched = watch(
                project,
                ledger,
                connector,
                fleet,
                depth=depth_of(health.gate),
                due=lambda status: status.health is None or not status.health.passed(health.gate),
            )
    except LedgerUnusable as error:
        tell(f"warning: the nodes of fleet {fleet.name} were not examined: {error.summary}")
        return False
    for text, level in news(watched):
        tell(f"{'warning: ' if level == 'warning' else ''}{text}")
    return bool(watched.failed)
