"""`orch cordon`: keep new jobs off nodes, and with `--undo` let them back."""

from __future__ import annotations

from typing import Annotated

import typer

from orch.cli.errors import end, say, tell
from orch.cli.options import Nodes, OfFleet, Rehearse
from orch.spec.errors import ExitCode

# A node that is up answers within this time; one that does not is not marked, and is reported.
DEADLINE_S = 10.0


def cordon(
    nodes: Nodes,
    *,
    fleet: OfFleet = None,
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Shown to everybody.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let the nodes take jobs again.")] = False,
    rehearse: Rehearse = False,
) -> None:
    """Keep new jobs off nodes. Jobs that run there stay, and everybody who uses the nodes sees the mark."""
    from orch.cli.driver.opening import open_runner
    from orch.cli.output.progress import watching
    from orch.cli.targets.nodes import nodes_named
    from orch.runner.node_api.cordon import mark, unmark
    from orch.spec.grammar.hosts import fold
    from orch.stacks.record.change_log import logged
    from orch.stacks.record.fleets import fleet_of, known_fleets
    from orch.stacks.stack.state import StackState

    if undo and reason:
        raise typer.BadParameter("it goes with a cordon, not with --undo", param_hint="--reason")
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        up = {fleet: StackState(project, fleet)} if fleet is not None else known_fleets(project)
        targets = nodes_named(nodes, {name: fleet_of(stack) for name, stack in up.items()})
        verb, words = "cordon --undo" if undo else "cordon", f"nodes {fold([node.name for node in targets])}"
        with watching() as listener, logged(project, verb, words, listener) as outcome:
            if undo:
                results = [*unmark(targets, runner.connector, deadline_s=DEADLINE_S)]
                message = "may take jobs again"
            else:
                results = [*mark(targets, runner.connector, reason, deadline_s=DEADLINE_S)]
                message = f"cordoned ({reason})" if reason else "cordoned"
            done = [result.node.name for result in results if result.ok]
            outcome.result = f"{fold(done)}: {message}" if done else "none of them answered"
    if done:
        say(f"{fold(done)}: {message}")
    errors = [result.error for result in results if result.error is not None]
    for error in errors:
        tell(error.text())
    end(ExitCode.HOSTS if errors else ExitCode.OK)
