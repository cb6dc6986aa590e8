"""`orch fleet evacuate`: moves a fleet's nodes out of a zone, and keeps new ones out of it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.context import Json, Rehearse, Yes
from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.nodes.maintain import (
    SCHEMA,
    SERIAL,
    Begin,
    How,
    MaxFail,
    PlanOnly,
    Reason,
    Report,
    Serial,
    StopRuns,
    Wait,
    begin,
    options_of,
    refuse_with_undo,
)
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runner.runs.context import RunnerContext
    from orch.stacks.maintenance.evacuate import Evacuation
    from orch.stacks.maintenance.plan import MaintenancePlan
    from orch.stacks.project import Project
    from orch.stacks.pulumi.operation import Listener


def evacuate(
    fleet: Annotated[
        str, typer.Argument(metavar="FLEET", help="A fleet's name.", autocompletion=completion.fleets)
    ],
    *,
    zone: Annotated[str, typer.Option("--zone", metavar="ZONE", help="The zone that its nodes leave.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let new nodes go to the zone again; what has moved stays.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Move all of the fleet, with its network; a cluster always is.")
    ] = False,
    stop_runs: StopRuns = False,
    wait: Wait = None,
    serial: Serial = SERIAL,
    max_fail: MaxFail = "0",
    reason: Reason = "",
    plan_only: PlanOnly = False,
    report: Report = None,
    yes: Yes = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Move a fleet's nodes out of a zone, in waves, and keep new ones out of it until that is undone.

    Nodes are drained first, as by `orch node drain`. A cluster moves as a whole.
    """
    how = How(yes, as_json, plan_only, rehearse, report)
    if undo:
        refuse_with_undo(how)
        _take_back(fleet, zone, rehearse=rehearse)
        return
    options = options_of(serial, max_fail, wait, reason, stop_runs=stop_runs)
    words = ["fleet", "evacuate", fleet, "--zone", zone, *(["--whole"] if whole else [])]

    def planned(project: Project, runner: RunnerContext, listener: Listener) -> MaintenancePlan:
        from orch.stacks.maintenance.drive import planned_for
        from orch.stacks.maintenance.evacuate import plan_evacuation

        found = plan_evacuation(project, fleet, zone, listener, whole=whole)
        if not found.names:
            _keep_out(project, fleet, found, how)
        chosen, waves = {fleet: found.names}, found.in_waves(options)
        return found.of(planned_for(runner, project, "evacuate", chosen, options=waves, listener=listener))

    def same(plan: MaintenancePlan) -> bool:
        own = plan.leaves(fleet, zone)
        if own and whole and not plan.whole:
            raise UsageError(
                f"the evacuation of {fleet} from {zone} was begun without `--whole`, and is not ended",
                hint="the same command without it goes on; "
                f"`orch fleet evacuate {fleet} --zone {zone} --undo` gives it up",
            )
        return own

    begin(Begin("evacuate", options, same, planned, words), how, None)


def _keep_out(project: Project, fleet: str, found: Evacuation, how: How) -> None:
    """A zone that the fleet has no node in: there is nothing to move."""
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.maintenance.evacuate import keep_out

    zone = found.zone
    lines = [f"orch fleet evacuate: no node of {fleet} is in {zone}", *(f"  {each}" for each in found.notes)]
    for line in () if how.as_json else lines:
        (say if how.plan_only else tell)(line)
    if not how.plan_only:
        if not how.yes:
            need_terminal(shlex.join(["orch", "fleet", "evacuate", fleet, "--zone", zone, "--yes"]), project)
            confirm(f"Keep new nodes out of {zone}?")
        keep_out(project, fleet, zone)
        if not how.as_json:
            say(f"no new node of {fleet} goes to {zone}")
    if how.as_json:
        print_json({"schema": SCHEMA, "fleet": fleet, "zone": zone, "nodes": []})
    end(ExitCode.OK)


def _take_back(fleet: str, zone: str, *, rehearse: bool) -> None:
    """Let new nodes go to a zone again, and give up an evacuation of it that was interrupted."""
    from orch.cli.runs.opening import open_runner
    from orch.runner.launch.environment import fold
    from orch.stacks.maintenance.evacuate import give_up, let_back

    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        for change, zone_of_nodes, names, silent in give_up(project, runner, fleet, zone):
            zone = zone_of_nodes
            say(f"change {change.id} (`orch {change.verb}` of {change.subject}) is given up")
            if names:
                say(f"{fold(names)}: may take jobs again")
            if silent:
                tell(f"{fold(silent)}: no answer, its cordon stays; `orch cordon --undo` takes it away")
        if (taken := let_back(project, fleet, zone)) is not None:
            say(f"new nodes of {fleet} may go to {taken} again; what has moved stays where it is")
        else:
            say(f"new nodes of {fleet} may go to {zone} already")
