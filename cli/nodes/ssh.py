"""`orch ssh`: a terminal on a node."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import Annotated

import typer

from orch.cli import completion
from orch.cli.context import project_at
from orch.cli.errors import UsageError
from orch.cli.options import Rehearse


def ssh(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="A node's name.", autocompletion=completion.nodes)
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="For ssh: its options, a command.")
    ] = None,
    *,
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", help="The fleet the node is of.", autocompletion=completion.fleets),
    ] = None,
    rehearse: Rehearse = False,
) -> None:
    """Log in to a node, through its jump hosts, with the fleet's key and the pinned host key."""
    from orch.cli.targets.nodes import nodes_named
    from orch.runner.connect import open_connector
    from orch.stacks.record.fleets import fleet_of, known_fleets
    from orch.stacks.stack.state import StackState

    project = project_at(rehearse=rehearse)
    up = {fleet: StackState(project, fleet)} if fleet is not None else known_fleets(project)
    target, *others = nodes_named([node], {name: fleet_of(stack) for name, stack in up.items()})
    if others:
        raise UsageError(
            f"{node!r} is {len(others) + 1} nodes, a login is to one",
            hint=f"`orch ssh {target.name}`, or `orch exec` for a command on several",
        )
    with closing(open_connector()) as connector:
        words = connector.terminal(target, project.dot / "ssh" / target.name, arguments or ())
    sys.stdout.flush()
    from orch.stacks.secrets.values import tunnels

    os.execve(words[0], words, {**os.environ, **tunnels(project)})
