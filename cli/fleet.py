"""`orch fleet`: the fleets that are up, their nodes and ids; and their end."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orch.cli import completion
from orch.cli.context import Force, Indices, Json, Rehearse, Yes, project_at
from orch.cli.errors import coloured, print_json, say, tell
from orch.stacks.state import StackState
from orch.stacks.summary import fold

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
    """What Docker or the cloud calls the nodes of a fleet, one a line: for their own commands."""
    wanted = indices or ()
    from orch.stacks.errors import NoSuchNode
    from orch.stacks.fleets import require_up
    from orch.stacks.records import node_records

    stack = StackState(project_at(rehearse=rehearse), name)
    require_up(stack)
    records = node_records(stack.recorded)
    there = {int(node["index"]): str(node["name"]) for node in stack.nodes}
    if missing := sorted(set(wanted) - set(there)):
        raise NoSuchNode(
            f"the fleet {name} has no node {', '.join(map(str, missing))}",
            detail=f"its nodes are {', '.join(f'{i} ({there[i]})' for i in sorted(there)) or 'none'}",
            code="ORCH355",
        )
    found = {there[index]: records[there[index]].id for index in sorted(wanted or there)}
    if unknown := [node for node, its in found.items() if its is None]:
        raise NoSuchNode(
            f"{fold(unknown)}: made by a group, and recorded without an id of its own",
            hint=f"`orch fleet show {name} -v` shows addresses",
            code="ORCH355",
        )
    for its in found.values():
        say(str(its))


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
    from orch.cli.provision import remove

    remove(
        name,
        yes=yes,
        as_json=as_json,
        indices=indices or (),
        by_name=True,
        force=force,
        rehearse=rehearse,
    )


def _show(name: str | None, *, as_json: bool, verbose: bool, rehearse: bool) -> None:
    from orch.cli.output.fleet import FleetRow, fleet_json, fleet_table
    from orch.cli.run import opened
    from orch.runner.node.status import node_statuses
    from orch.runner.runs.lifecycle import reconcile_once
    from orch.stacks.fleets import fleet_of, known_fleets
    from orch.stacks.records import node_records

    with opened(None, as_json=True, rehearse=rehearse) as (project, place):
        up = {name: StackState(project, name)} if name else known_fleets(project)
        states = [(fleet_of(stack), stack) for stack in up.values()]
        reconcile_once(place)  # a run whose end nobody noticed would still hold its nodes
        found = [
            FleetRow(state, node_statuses(state, place.connector), node_records(stack.recorded))
            for state, stack in states
        ]
    if as_json:
        print_json({"schema": SCHEMA, "fleets": [fleet_json(each) for each in found]})
    elif not found:
        tell("no fleet is up in this project; bring one up with `orch up fleet.yml`")
    else:
        say(fleet_table(found, verbose=verbose, colour=coloured(sys.stdout)))
