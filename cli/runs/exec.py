"""`orch exec` in the containers of a run: what a name means, which ranks, and a terminal in one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orch.cli.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from orch.runner.launch.run_plan import RunPlan
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.state import FleetState, NodeState
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.project.project import Project

_KINDS = ("run", "fleet")


def kind_of(name: str) -> tuple[str, str]:
    """`run` or `fleet` where a name says which it is of, else ""; and the name itself."""
    kind, colon, rest = name.partition(":")
    return (kind, rest) if colon and kind in _KINDS else ("", name)


def fleet_or_run(project: Project, runner: RunnerContext, name: str, *, verb: str) -> FleetState | RunRow:
    """What a name is that may be a fleet's or a run's; `run:NAME` and `fleet:NAME` say which.

    A fleet comes before a run that has ended. Raises UsageError where it is both, NoSuchFleet, UnknownRun.
    """
    from orch.runner.errors import UnknownRun
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.record.fleets import fleet_state

    kind, rest = kind_of(name)
    if kind:
        return fleet_state(project, rest) if kind == "fleet" else runner.ledger.get(rest)
    unknown: UnknownRun | None = None
    try:
        row = runner.ledger.get(name)
    except UnknownRun as error:
        row, unknown = None, error
    try:
        fleet = fleet_state(project, name)
    except NoSuchFleet as error:
        if unknown is not None and runner.ledger.arrays.find(name) is not None:
            raise unknown from error  # which says that it is an array
        if row is None:
            raise no_such_name(project, runner, name) from error
        return row
    if row is not None and row.active:
        raise UsageError(
            f"{name} is a fleet, and an active run",
            hint=f"`orch {verb} run:{name}` or `orch {verb} fleet:{name}`",
        )
    return fleet


def no_such_name(project: Project, runner: RunnerContext, name: str) -> NoSuchFleet:
    from orch.spec.grammar.values import shown
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.record.fleets import known_fleets

    runs = dict.fromkeys(row.name for row in runner.ledger.runs(limit=5))
    return NoSuchFleet(
        f"neither a fleet nor a run of this project is named {shown(name)}",
        where=str(project.root),
        detail=f"fleets: {', '.join(known_fleets(project)) or 'none is up'}; "
        f"latest runs: {', '.join(runs) or 'none'}",
        hint="`orch fleet` and `orch ps -a` list them",
        code="ORCH353",
    )


def with_containers(runner: RunnerContext, row: RunRow) -> RunRow:
    """The run, if it has begun and goes on. Raises RunConflict."""
    from orch.runner.errors import RunConflict

    if not row.active:
        raise RunConflict(
            f"run {row.name} has ended: it has no containers",
            hint=f"`orch logs {runner.ledger.argument(row.id)}` prints its logs",
        )
    if row.started_at is None:
        raise RunConflict(
            f"run {row.name} has not started: its status is {row.status}",
            hint=f"`orch attach {row.name}` follows it",
        )
    return row


def nodes_of_ranks(
    plan: RunPlan, ranks: Sequence[int], nodes: Sequence[str]
) -> tuple[tuple[NodeState, ...], Mapping[str, int]]:
    """The nodes of a run that `--rank` and `--node` choose, all by default, and the rank of each by name.

    `nodes`: names, folded names or ranks. Raises UnknownRank, UnknownNode.
    """
    from orch.cli.hosts.node_names import nodes_named
    from orch.runner.errors import UnknownRank
    from orch.spec.state import FleetState

    rank_of = {rank.node.name: rank.rank for rank in plan.ranks}
    for rank in ranks:
        if not 0 <= rank < len(plan.ranks):
            raise UnknownRank(
                f"run {plan.run} has no rank {rank}", hint=f"its ranks are 0 to {len(plan.ranks) - 1}"
            )
    by_rank = {str(rank.rank): rank.node.name for rank in plan.ranks}
    words = [by_rank[str(rank)] for rank in ranks]
    words += [word if word in rank_of else by_rank.get(word, word) for word in nodes]
    if not words:
        return plan.nodes, rank_of
    of_run = FleetState(name=plan.run, stack=plan.fleet, backend=plan.backend, nodes=plan.nodes)
    return nodes_named(words, {f"run {plan.run}": of_run}), rank_of


def on_terminal() -> bool:
    """Whether a person types here and reads what comes."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def terminal_words(
    runner: RunnerContext, dot: Path, plan: RunPlan, rank: int, text: str, *, root: bool
) -> list[str]:
    """The command line of a terminal in which `text` runs in a rank's container. Raises RunnerError."""
    node = plan.ranks[rank].node
    command = runner.runtime(node).job_command(plan, rank, text, root=root, terminal=True)
    return runner.connector.command_line(node, dot / "ssh" / node.name, command, terminal=True)


def become(words: Sequence[str], project: Project) -> None:
    """Go on as this command line."""
    from orch.stacks.secrets.values import tunnels

    sys.stdout.flush()
    os.execvpe(words[0], list(words), {**os.environ, **tunnels(project)})
