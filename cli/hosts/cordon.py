"""`orch cordon`: keeping new jobs off nodes, and letting them back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.errors import end, say, tell
from orch.spec.errors import ExitCode, OrchError
from orch.spec.grammar.hosts import folded_size
from orch.spec.grammar.values import Problem, shown

if TYPE_CHECKING:
    from orch.spec.state import FleetState, NodeState

# A node that is up answers within this; one that is not gets no mark, and is told.
DEADLINE_S = 10.0


class UnknownNode(OrchError):
    """A node that no fleet here has, or that several have."""

    exit_code = ExitCode.USAGE


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


def chosen_nodes(given: Iterable[str], fleets: Mapping[str, FleetState]) -> tuple[NodeState, ...]:
    """The nodes that `given` names, each once. Raises UnknownNode."""
    known: dict[str, list[tuple[str, NodeState]]] = {}
    for fleet, state in fleets.items():
        for node in state.nodes:
            known.setdefault(node.name, []).append((fleet, node))
    names = dict.fromkeys(name for word in given for name in ([word] if word in known else _unfolded(word)))
    unknown = [name for name in names if name not in known]
    if unknown:
        from orch.runner.launch.environment import fold

        has = "; ".join(f"{fleet} has {fold([n.name for n in s.nodes])}" for fleet, s in fleets.items())
        where = next(iter(fleets)) if len(fleets) == 1 else "the fleets here"
        raise UnknownNode(
            f"no node named {fold(unknown)} in {where}",
            detail=has or "no fleet is up in this project",
            hint="`orch fleet` shows all nodes",
        )
    return tuple(_one(name, known[name]) for name in names)


def _one(name: str, found: Sequence[tuple[str, NodeState]]) -> NodeState:
    """The node of that name; one machine may be in several fleets, which the way to it shows."""
    if len({node.access.machine for _, node in found}) > 1:
        fleets = [fleet for fleet, _ in found]
        raise UnknownNode(
            f"{len(found)} fleets have a node named {name}: {', '.join(fleets)}",
            hint=f"say which with `--fleet {fleets[0]}`",
        )
    return found[0][1]


def _unfolded(word: str) -> list[str]:
    """The names that a word stands for, counted first: a thousand million would take all memory."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    reason: NodeSetException | Problem | None = None
    names: list[str] = []
    try:
        # What a comma, or another sign of this notation, parts outside of brackets is counted by itself.
        for part in re.split(r"[,!&^\s](?![^\[]*\])", word):
            folded_size(part)
        if not re.search(r"\[(?![0-9,/-]*\])", word):
            names = list(NodeSet(word, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, Problem) as error:
        reason = error
    if not names:
        raise UnknownNode(
            f"{shown(word)} is not the name of nodes",
            detail=str(reason) if reason else None,
            hint="such as gpu1 or gpu[1-4,7]",
        ) from reason
    return names
