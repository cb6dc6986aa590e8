"""`orch rollout`: what a fleet's file asks for by now comes to its nodes wave by wave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.errors import UsageError, say
from orch.cli.maintenance.maintain import Begin, begin
from orch.cli.maintenance.options import Handling, Waves
from orch.cli.options import Upgrade, with_records

if TYPE_CHECKING:
    from orch.runner.runs.context import RunnerContext
    from orch.stacks.maintenance.plan import MaintenancePlan
    from orch.stacks.project.project import Project
    from orch.stacks.pulumi.progress import Listener


@with_records
def rollout(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A YAML file with one fleet. Also as `-f FILE`.")
    ],
    *,
    upgrade: Upgrade = False,
    waves: Waves,
    how: Handling,
) -> None:
    """Make nodes anew that differ from their fleet's file, in waves: another image or root disk.

    Each wave is drained first and checked afterwards; the next one begins when its nodes are in order. What
    the file changes without new nodes is brought up after the last wave.
    """
    from orch.cli.targets.fleet_files import FleetFile
    from orch.components.request import Approvals

    options = waves.parsed()
    source = FleetFile(file, rehearse=how.rehearse)
    found = list(source.fleets())
    if len(found) != 1:
        raise UsageError(
            f"{file} has {len(found)} fleets, a rollout is of one", hint="give the file of one fleet"
        )
    ((_, document, fleet),) = found
    request = source.request(document, fleet, Approvals(upgrade=upgrade))

    def planned(project: Project, runner: RunnerContext, listener: Listener) -> MaintenancePlan:
        from dataclasses import replace

        from orch.stacks.maintenance.drive import planned_for
        from orch.stacks.maintenance.rollout import outdated_nodes, refuse_start_only, rest_of
        from orch.stacks.maintenance.spares import spares_of
        from orch.stacks.provisioning import operations
        from orch.stacks.pulumi.operation import require_confirmed
        from orch.stacks.record.fleets import require_up
        from orch.stacks.stack.state import StackState

        stack = StackState(project, fleet.name)
        require_up(stack)
        require_confirmed(stack, listener)
        plan = operations.preview(project, request, listener)
        names = outdated_nodes(plan, stack)
        if not names:
            refuse_start_only(plan, stack, str(request.file or file))
            say(f"fleet {fleet.name}: no node differs from {file}; `orch up {file}` changes what else does")
            raise typer.Exit
        made = planned_for(
            runner, project, "rollout", {fleet.name: names}, options=options, listener=listener
        )
        spares, words = spares_of(fleet, stack, made.waves)
        return replace(made, notes=(words, rest_of(plan, names, stack)), spares=spares)

    def same(plan: MaintenancePlan) -> bool:
        return plan.fleets == (fleet.name,)

    words = ["rollout", file, *(["--upgrade"] if upgrade else [])]
    begin(Begin("rollout", options, same, planned, words, request), how, None if file == "-" else file)
