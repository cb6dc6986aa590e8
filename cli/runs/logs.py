"""`orch logs`: the logs of a run, while it runs and after."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.driver.opening import open_runner
from orch.cli.errors import coloured
from orch.cli.options import Rehearse, Run
from orch.cli.targets.moments import moment_of

if TYPE_CHECKING:
    from datetime import datetime

    from orch.runner.ledger.records import RunRow


def logs(
    name: Run,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    node: Annotated[
        str | None,
        typer.Option("--rank", "--node", metavar="RANK|NODE", help="Only this rank, or those on this node."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only the last lines of each rank.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="A time (RFC 3339) or an age: 10m, 2h.")
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=0, metavar="N", help="Of an earlier attempt; the first is 0."),
    ] = None,
    folded: Annotated[
        bool | None,
        typer.Option(
            "--fold/--no-fold",
            help="Equal lines of several ranks as one, `[0-7] text`; on a terminal, but for `-f`, by itself.",
        ),
    ] = None,
    rehearse: Rehearse = False,
) -> None:
    """Print the logs of a run, while it runs and after."""
    if folded and follow:
        raise typer.BadParameter("lines that are followed are shown as they come", param_hint="--fold")
    if since is not None:
        moment_of(since)  # what cannot be read is told before anything is opened
    with open_runner(None, as_json=False, rehearse=rehearse) as (_, runner):
        from orch.cli.output.live import FoldedLogs, Live
        from orch.runner.runs.lifecycle import reconcile_once
        from orch.runner.runs.read_logs import Selection, of_attempt, read_logs

        row = runner.ledger.get(name)
        reconcile_once(runner, [row])
        row = runner.ledger.by_id(row.id)
        if attempt is not None:
            follow = follow and attempt == row.attempt
            row = of_attempt(row, attempt)
        ranks = _ranks_of(row, node)
        # An age is by the ledger's clock, which machines that share one have in common.
        moment = None if since is None else _stamp(moment_of(since, row.now))
        live = Live(sys.stdout, colour=coloured(sys.stdout), prefix=len(ranks) > 1)
        fold = not follow and len(ranks) > 1 and (sys.stdout.isatty() if folded is None else folded)
        shown = FoldedLogs(live) if fold else live
        read_logs(replace(runner, processor=shown), row, Selection(tuple(ranks), tail, moment), follow=follow)
        if isinstance(shown, FoldedLogs):
            shown.finish()


def _ranks_of(row: RunRow, chosen: str | None) -> list[int]:
    """The ranks of a run: all, one by its number, or those on a node by its name. Raises UnknownRank."""
    from orch.runner.errors import UnknownRank
    from orch.spec.errors import visible

    everyone = [rank.rank for rank in row.ranks]
    if chosen is None:
        return everyone
    ranks = [rank.rank for rank in row.ranks if chosen in (str(rank.rank), rank.node)]
    if ranks:
        return ranks
    if chosen.isdigit():
        raise UnknownRank(f"run {row.name} has no rank {chosen}", hint=f"its ranks are 0 to {everyone[-1]}")
    from orch.spec.grammar.hosts import fold

    raise UnknownRank(
        f"run {row.name} has no rank on a node named {visible(chosen)}",
        hint=f"its nodes are {fold([rank.node for rank in row.ranks])}",
    )


def _stamp(moment: datetime) -> str:
    """RFC 3339 as log lines have it."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
