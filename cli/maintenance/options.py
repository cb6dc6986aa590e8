"""Options of the verbs that change nodes in waves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.errors import UsageError
from orch.cli.options import Json, PlanOnly, Rehearse, Yes

if TYPE_CHECKING:
    from orch.stacks.maintenance.plan import Options


@dataclass(frozen=True)
class Waves:
    """Options that say what becomes of runs on the nodes, and how many nodes are changed at once."""

    stop_runs: Annotated[
        bool, typer.Option("--stop-runs", help="Stop the runs on the nodes that the plan names.")
    ] = False
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="DURATION", help="Wait so long for runs on the nodes to end."),
    ] = None
    # One node to see whether it works, then ever more.
    serial: Annotated[
        str,
        typer.Option(
            "--serial",
            metavar="N|N%,...",
            help="Nodes of each wave, or so many of a hundred; the last repeats.",
        ),
    ] = "1,10%,25%"
    max_fail: Annotated[
        str,
        typer.Option("--max-fail", metavar="N|N%", help="Go on while no more nodes than these have failed."),
    ] = "0"
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Shown with the cordon.")] = ""

    def parsed(self) -> Options:
        """Return the options with their numbers and durations. Raises BadParameter."""
        from orch.spec.grammar.values import parse_duration
        from orch.stacks.maintenance.plan import Options
        from orch.stacks.maintenance.serial import Share, parse_serial

        option = "--serial"
        try:
            sizes = parse_serial(self.serial)
            option = "--max-fail"
            most = Share.parse(self.max_fail, least=0)
            option = "--wait"
            wait_s = parse_duration(self.wait) if self.wait is not None else 0
            if wait_s is None:
                raise ValueError("write how long, `30m` or `2h`")
        except ValueError as problem:
            raise typer.BadParameter(str(problem), param_hint=option) from problem
        return Options(sizes, most, self.stop_runs, wait_s, " ".join(self.reason.split()))


@dataclass(frozen=True)
class Handling:
    """Options that say what is done with a plan: it is shown alone, asked about, reported, or rehearsed."""

    plan_only: PlanOnly = False
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="Write what was planned and done as Markdown.", dir_okay=False
        ),
    ] = None
    yes: Yes = False
    as_json: Json = False
    rehearse: Rehearse = False

    def refuse_with_undo(self) -> None:
        """Raise UsageError for options that `--undo` ignores: it has no plan, and acts at once."""
        options = {"--plan-only": self.plan_only, "--report": self.report is not None, "--json": self.as_json}
        if given := [option for option, is_given in options.items() if is_given]:
            raise UsageError(
                f"`--undo` goes without {' and '.join(given)}; nothing was changed",
                hint="it takes back at once, without a plan, and says what",
            )
