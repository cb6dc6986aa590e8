"""`orch attach` and `orch stop`: follow a run, or end it, and show how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.driver.background import see_through, supervise
from orch.cli.driver.opening import open_runner
from orch.cli.errors import UsageError, end, print_json, tell
from orch.cli.options import Json, Port, Rehearse, Run
from orch.cli.runs.ports import hold_ports_of_run, ports_of
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runner.events import PortForwarded
    from orch.runner.ledger.records import RunRow
    from orch.runner.plan.run_plan import RankPort
    from orch.runner.runs.arrays.choose import Chosen
    from orch.runner.runs.lifecycle import RunnerContext


def attach(
    name: Run,
    port: Port = None,
    in_background: Annotated[bool, typer.Option("--supervise", hidden=True)] = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Follow a run from where its log stopped, and take over if nobody drives it. Ctrl-C detaches again.

    Its ports are forwarded meanwhile.
    """
    from orch.runner.access.forwards import LocalPorts

    other_ports = ports_of(port or ())
    with open_runner(None, as_json=as_json, rehearse=rehearse) as (project, runner), LocalPorts() as held:
        if (chosen := chosen_of(runner, name)) is not None:
            from orch.cli.runs.arrays import verbs

            if in_background:
                end(supervise(runner, runner.ledger.by_id(chosen.members[0].id), chosen.array))
            _refuse_ports(other_ports, chosen)
            end(verbs.attach(project, runner, chosen, as_json=as_json))
        row = runner.ledger.get(name)
        if in_background:
            end(supervise(runner, row))
        if row.active and not row.held:
            from orch.cli.output.run import status_text

            tell(f"run {row.name}: {status_text(row)}, and nobody drove it; this process does from now on")
        if row.active:
            hold_ports_of_run(held, row, other_ports)
            row = see_through(project, runner, row, held)
        show_end(runner, row, as_json=as_json, forwards=held.open)
        end(code_of(row))


def stop(
    name: Run,
    abort: Annotated[bool, typer.Option("--abort", help="Kill at once, without SIGTERM first.")] = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """End a run: its processes get SIGTERM, and `stop_duration` to finish."""
    with open_runner(None, as_json=as_json, rehearse=rehearse) as (_, runner):
        from orch.runner.runs import lifecycle

        if (chosen := chosen_of(runner, name)) is not None:
            from orch.cli.runs.arrays import verbs

            verbs.stop(runner, chosen, abort=abort, as_json=as_json)
            return
        row = runner.ledger.get(name)
        if not row.active and not as_json:
            from orch.cli.output.run import status_text

            tell(f"run {name} has ended already: {status_text(row)}")
        ended = lifecycle.stop(runner, row, abort=abort)
        _tell_left(ended)
        show_end(runner, ended, as_json=as_json)


def chosen_of(runner: RunnerContext, name: str) -> Chosen | None:
    """The array, or the members of one, that a name is of; None for what names one run."""
    from orch.runner.runs.arrays.choose import choose

    return choose(runner.ledger, name)


def _refuse_ports(ports: Sequence[RankPort], chosen: Chosen) -> None:
    if ports:
        first = chosen.members[0].name
        raise UsageError(
            "ports lead to the jobs of one run, and this is an array",
            hint=f"`orch attach {first} --port ...` forwards those of one member",
        )


def _tell_left(row: RunRow) -> None:
    """Tell which nodes may still have something of a run that has ended."""
    from orch.spec.grammar.hosts import fold

    if left := [rank.node for rank in row.ranks if not rank.collected]:
        tell(
            f"warning: {fold(left)} may still hold something of it: the node, or Docker there, did not answer"
        )
        tell("  hint: once it answers, any verb on runs clears it away; `orch down --force` goes on without")


def show_end(
    runner: RunnerContext, row: RunRow, *, as_json: bool, forwards: Sequence[PortForwarded] = ()
) -> None:
    from orch.cli.output.run import outputs_lines, summary
    from orch.runner.runs.outputs import outputs_left

    if as_json:
        print_run(runner, row, forwards)
        return
    tell(summary(row, runner.ledger.argument(row.id)))
    for text in outputs_lines(outputs_left(runner.ledger, row)):
        tell(f"  {text}")


def print_run(runner: RunnerContext, row: RunRow, forwards: Sequence[PortForwarded] = ()) -> None:
    from orch.cli.output.run import SCHEMA, run_json
    from orch.runner.runs.outputs import outputs_left

    data = run_json(row, forwards, left=outputs_left(runner.ledger, row))
    print_json({"schema": SCHEMA, **data}, indent=None)


def code_of(row: RunRow) -> ExitCode:
    from orch.runner.runs.lifecycle import exit_code

    return exit_code(row)
