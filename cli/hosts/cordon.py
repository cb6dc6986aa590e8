"""`orch cordon`: keeping new jobs off nodes, and letting them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.errors import end, say, tell
from orch.cli.hosts.node_names import chosen_nodes
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    pass

# A node that is up answers within this; one that is not gets no mark, and is told.
DEADLINE_S = 10.0


def cordon(
    nodes: Annotated[
        list[str],
        typer.Argument(
            metavar="NODE...",
            help="Names of nodes, also folded: gpu[1-4,7].",
            autocompletion=completion.nodes,
        ),
    ],
    *,
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", help="The fleet the nodes are of.", autocompletion=completion.fleets),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Shown to everybody.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let the nodes take jobs again.")] = False,
) -> None:
    """Keep new jobs off nodes. Jobs that run there stay, and everybody who uses the nodes sees the mark."""
    from orch.cli.run import opened
    from orch.runner.launch.environment import fold
    from orch.runner.node.cordon import mark, unmark
    from orch.stacks.fleets import fleet_of, known_fleets
    from orch.stacks.state import StackState

    if undo and reason:
        raise typer.BadParameter("it goes with a cordon, not with --undo", param_hint="--reason")
    with opened(None, as_json=True) as (project, place):
        up = {fleet: StackState(project, fleet)} if fleet is not None else known_fleets(project)
        chosen = chosen_nodes(nodes, {name: fleet_of(stack) for name, stack in up.items()})
        if undo:
            results = [*unmark(chosen, place.connector, deadline_s=DEADLINE_S)]
            done = "may take jobs again"
        else:
            results = [*mark(chosen, place.connector, reason, deadline_s=DEADLINE_S)]
            done = f"cordoned ({reason})" if reason else "cordoned"
    if good := [result.node.name for result in results if result.ok]:
        say(f"{fold(good)}: {done}")
    errors = [result.error for result in results if result.error is not None]
    for error in errors:
        tell(error.text())
    end(ExitCode.HOSTS if errors else ExitCode.OK)
