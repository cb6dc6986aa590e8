"""Containers of a run for `orch exec` and `orch cp`: which ranks they are of, and a terminal in one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from orch.runner.ledger.records import RunRow
    from orch.runner.plan.run_plan import RunPlan
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.state import NodeState
    from orch.stacks.project.project import Project


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
    from orch.cli.targets.nodes import nodes_named
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
    """Return True if a person types here and reads the output."""
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
