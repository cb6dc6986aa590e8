"""`orch fleet`: the fleets that are up, their nodes and ids; and their end."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from orch.cli import completion
from orch.cli.context import Force, Indices, Json, Rehearse, Yes, project_at
from orch.cli.errors import coloured, print_json, say, tell
from orch.cli.nodes.evacuate import evacuate

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
    from orch.stacks.fleets import require_up
    from orch.stacks.records import node_records
    from orch.stacks.state import StackState
    from orch.stacks.summary import fold

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


app.command("evacuate", epilog="Example: orch fleet evacuate lab --zone us-east-1a --wait 2h")(evacuate)


def _show(name: str | None, *, as_json: bool, verbose: bool, rehearse: bool) -> None:
    from orch.cli.hosts.health import protected_words
    from orch.cli.output.fleet import FleetRow, fleet_json, fleet_table, with_ended
    from orch.cli.runs.opening import open_runner
    from orch.runner.node.status import node_statuses
    from orch.runner.runs.lifecycle import reconcile_once
    from orch.stacks.fleets import fleet_of, known_fleets
    from orch.stacks.records import node_records
    from orch.stacks.request import ended_nodes
    from orch.stacks.state import StackState

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
