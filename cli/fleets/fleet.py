"""`orch fleet`: the fleets that are up, their nodes and ids; out of a zone; and their end."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.context import project_at
from orch.cli.errors import UsageError, coloured, end, print_json, say, tell
from orch.cli.maintenance.maintain import SCHEMA as PLAN_SCHEMA
from orch.cli.maintenance.maintain import Begin, begin
from orch.cli.maintenance.options import Handling, Waves
from orch.cli.options import Force, Indices, Json, Rehearse, Yes, with_records
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runner.runs.context import RunnerContext
    from orch.stacks.maintenance.evacuation import Evacuation
    from orch.stacks.maintenance.plan import MaintenancePlan
    from orch.stacks.project.project import Project
    from orch.stacks.pulumi.progress import Listener

SCHEMA = 1

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A fleet's name.", autocompletion=completion.fleets)
]
NodeDetails = Annotated[
    bool, typer.Option("--verbose", "-v", help="Type, place, id, resources and addresses of each node too.")
]

app = typer.Typer(no_args_is_help=False)


@app.callback(invoke_without_command=True)
def fleet(
    context: typer.Context, verbose: NodeDetails = False, as_json: Json = False, rehearse: Rehearse = False
) -> None:
    """Fleets that are up. Alone, the same as `fleet list`."""
    if context.invoked_subcommand is None:
        fleet_list(verbose, as_json, rehearse)


@app.command("list", epilog="Example: orch fleet list --json")
def fleet_list(verbose: NodeDetails = False, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """The fleets of this project and the state of their nodes."""
    _show(None, as_json=as_json, verbose=verbose, rehearse=rehearse)


@app.command("show", epilog="Example: orch fleet show laptop -v")
def fleet_show(
    name: Name,
    verbose: NodeDetails = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """One fleet."""
    _show(name, as_json=as_json, verbose=verbose, rehearse=rehearse)


@app.command("ids", epilog="Example: docker kill $(orch fleet ids laptop -i 0)")
def fleet_ids(name: Name, *, indices: Indices = None, rehearse: Rehearse = False) -> None:
    """Ids of a fleet's nodes in Docker or the cloud, one a line, for commands of these."""
    from orch.stacks.errors import NoSuchNode
    from orch.stacks.events.notation import fold
    from orch.stacks.record.fleets import require_up
    from orch.stacks.record.node_records import node_records
    from orch.stacks.stack.state import StackState

    stack = StackState(project_at(rehearse=rehearse), name)
    require_up(stack)
    records = node_records(stack.recorded)
    names = {int(node["index"]): str(node["name"]) for node in stack.nodes}
    if unknown_indices := sorted(set(indices or ()) - set(names)):
        raise NoSuchNode(
            f"the fleet {name} has no node {', '.join(map(str, unknown_indices))}",
            detail=f"its nodes are {', '.join(f'{i} ({names[i]})' for i in sorted(names)) or 'none'}",
            code="ORCH355",
        )
    ids = {names[index]: records[names[index]].id for index in sorted(indices or names)}
    if unknown := [node for node, node_id in ids.items() if node_id is None]:
        raise NoSuchNode(
            f"{fold(unknown)}: made by a group, and recorded without an id of its own",
            hint=f"`orch fleet show {name} -v` shows addresses",
            code="ORCH355",
        )
    for node_id in ids.values():
        say(str(node_id))


@app.command("delete", epilog="Example: orch fleet delete laptop --yes")
def fleet_delete(
    name: Name,
    *,
    indices: Indices = None,
    yes: Yes = False,
    force: Force = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """The same as `orch down NAME`."""
    from orch.cli.fleets.provision import remove

    fleets = [(project_at(rehearse=rehearse), name)]
    remove(name, fleets, indices or (), yes=yes, force=force, as_json=as_json)


@app.command("evacuate", epilog="Example: orch fleet evacuate lab --zone us-east-1a --wait 2h")
@with_records
def fleet_evacuate(
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
    waves: Waves,
    how: Handling,
) -> None:
    """Move a fleet's nodes out of a zone, in waves, and keep new ones out of it until that is undone.

    Nodes are drained first, as by `orch node drain`. A cluster moves as a whole.
    """
    if undo:
        how.refuse_with_undo()
        _let_back(fleet, zone, rehearse=how.rehearse)
        return
    options = waves.parsed()
    words = ["fleet", "evacuate", fleet, "--zone", zone, *(["--whole"] if whole else [])]

    def planned(project: Project, runner: RunnerContext, listener: Listener) -> MaintenancePlan:
        from orch.stacks.maintenance.drive import planned_for
        from orch.stacks.maintenance.evacuation import plan_evacuation

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


def _keep_out(project: Project, fleet: str, found: Evacuation, how: Handling) -> None:
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
        print_json({"schema": PLAN_SCHEMA, "fleet": fleet, "zone": zone, "nodes": []})
    end(ExitCode.OK)


def _let_back(fleet: str, zone: str, *, rehearse: bool) -> None:
    """Let new nodes go to a zone again, and give up an evacuation of it that was interrupted."""
    from orch.cli.driver.opening import open_runner
    from orch.spec.grammar.hosts import fold
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


def _show(name: str | None, *, as_json: bool, verbose: bool, rehearse: bool) -> None:
    from orch.cli.driver.opening import open_runner
    from orch.cli.maintenance.checks import protected_words
    from orch.cli.output.fleet import FleetRow, fleet_json, fleet_table, with_ended
    from orch.runner.node.status import node_statuses
    from orch.runner.runs.lifecycle import reconcile_once
    from orch.stacks.plans.request import ended_nodes
    from orch.stacks.record.fleets import fleet_of, known_fleets
    from orch.stacks.record.node_records import node_records
    from orch.stacks.stack.state import StackState

    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        up = {name: StackState(project, name)} if name else known_fleets(project)
        states = [(fleet_of(stack), stack) for stack in up.values()]
        reconcile_once(runner)  # a run that ended unnoticed would still show its nodes as busy
        rows = [
            FleetRow(
                state,
                with_ended(state, node_statuses(state, runner.connector), partial(ended_nodes, stack)),
                node_records(stack.recorded),
                protected_words(project, runner, state),
            )
            for state, stack in states
        ]
    if as_json:
        print_json({"schema": SCHEMA, "fleets": [fleet_json(each) for each in rows]})
    elif not rows:
        tell("no fleet is up in this project; bring one up with `orch up fleet.yml`")
    else:
        say(fleet_table(rows, verbose=verbose, colour=coloured(sys.stdout)))
        for each in rows:
            if each.protected is not None:
                tell(f"warning: {each.protected}")
