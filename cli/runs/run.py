"""`orch run`, `logs`, `attach`, `stop`: options to calls of the runner, results to output."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.context import ALSO, Detach, Json, OnFleet, Port, Profile, Rehearse, TraceOption, Variables
from orch.cli.errors import UsageError, coloured, end, print_json, say, tell
from orch.cli.output.ticking import still
from orch.cli.output.tracing import span, traced
from orch.cli.runs.background import drive_afresh, drive_behind, see_through, supervise
from orch.cli.runs.new_nodes import NewNodes, tell_of_later_nodes
from orch.cli.runs.opening import EarlyStart, early_start, open_runner
from orch.cli.runs.ports import hold_ports, hold_ports_of_run, ports_of
from orch.cli.runs.submission import (
    check_name,
    fleets_with_room,
    is_run,
    kept_if_submitted,
    of_array,
    submit_task,
)
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from datetime import datetime

    from orch.runner.events import PortForwarded
    from orch.runner.ledger.records import RunRow
    from orch.runner.plan.run_plan import RankPort
    from orch.runner.runs.arrays.choose import Chosen
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.loader.load import Document

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The run's name or id, as `orch ps -a` shows them.",
        autocompletion=completion.runs,
    ),
]


@traced
def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help=f"A YAML file with a task, or -. {ALSO}")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="For ${{ run.args }} in the task.")
    ] = None,
    *,
    fleet: OnFleet = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="The run's name.")] = None,
    env: Variables = None,
    profile: Profile = None,
    port: Port = None,
    detach: Detach = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait in line when the nodes are not free; else it is refused.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Make nodes for the run without asking, where it needs some.")
    ] = False,
    no_provision: Annotated[
        bool, typer.Option("--no-provision", help="Never make nodes for the run.")
    ] = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
    trace: TraceOption = False,
) -> None:
    """Run the tasks and dev environments of a file on a fleet, and show their logs until they end.

    Ctrl-C detaches: the run goes on, `orch attach` finds it again.
    """
    del trace  # `traced` has seen to it
    start(
        file,
        arguments or (),
        fleet=fleet,
        name=name,
        env=env or (),
        detach=detach,
        wait=wait,
        as_json=as_json,
        rehearse=rehearse,
        profile=profile,
        ports=port or (),
        yes=yes,
        provision=not no_provision,
    )


def start(
    file: str,
    arguments: Sequence[str] = (),
    *,
    fleet: str | None,
    name: str | None,
    env: Sequence[str],
    detach: bool,
    wait: bool = False,
    as_json: bool = False,
    rehearse: bool = False,
    mixed: bool = False,
    profile: str | None = None,
    ports: Sequence[str] = (),
    yes: bool = False,
    provision: bool = True,
) -> None:
    """Run the tasks of a file. `mixed`: the caller acts on the other documents, so there is no note."""
    other_ports = ports_of(ports)
    if other_ports and detach:
        raise typer.BadParameter(
            "nothing is forwarded with --detach; `orch attach RUN --port ...` does", param_hint="--port"
        )
    if name is not None:
        from orch.runner.plan.run_names import RunName

        name = RunName.parse(name)
    variables = variables_of(env)
    with early_start(file, fleet, detach=detach and not mixed, rehearse=rehearse) as early:
        _submit_all(
            file,
            arguments,
            fleet=fleet,
            name=name,
            variables=variables,
            detach=detach,
            wait=wait,
            as_json=as_json,
            rehearse=rehearse,
            mixed=mixed,
            profile=profile,
            other_ports=other_ports,
            yes=yes,
            provision=provision,
            early=early,
        )


def _submit_all(
    file: str,
    arguments: Sequence[str],
    *,
    fleet: str | None,
    name: str | None,
    variables: dict[str, str],
    detach: bool,
    wait: bool,
    as_json: bool,
    rehearse: bool,
    mixed: bool,
    profile: str | None,
    other_ports: tuple[RankPort, ...],
    yes: bool,
    provision: bool,
    early: EarlyStart,
) -> None:
    from orch.cli.output.run import nodes_text, place_text
    from orch.policies.settings import today
    from orch.policies.task_verdicts import require_allowed
    from orch.runner.access.forwards import LocalPorts

    documents = _load(file, variables, profile)
    tasks = [document for document in documents if is_run(document)]
    if not tasks:
        from orch.runner.errors import BadTask

        hint = "a task begins with `type: task`, a dev environment with `type: dev-environment`"
        raise BadTask("there is no task in it", where=file, hint=hint)
    if name is not None and len(tasks) > 1:
        raise UsageError(
            f"`--name` names one run, and {file} has {len(tasks)} tasks",
            hint="give each task a `name` of its own",
        )
    if other_ports and any(map(of_array, tasks)):
        raise UsageError(
            "ports lead to the jobs of one run, and this is an array",
            hint="`orch attach NAME_INDEX --port ...` forwards those of one member",
        )
    if arguments:
        _warn_of_unused(tasks)
    if len(documents) > len(tasks) and not mixed:
        tell("note: only tasks and dev environments are run; documents of other types are left out")
    path = None if file == "-" else file
    with open_runner(path, as_json=as_json, rehearse=rehearse, early=early) as (project, runner):
        if found := require_allowed(tasks, project.policies, str(project.root), today()):
            from orch.spec.diagnostics import render_human

            tell(render_human(found))
        yes = yes or project.nodes_for_runs == "always"
        # Who waits in line makes none without saying so.
        makes = provision and (yes or not (wait or project.nodes_for_runs == "never"))
        new_nodes = NewNodes(makes, yes, f"orch run {file} --yes", as_json)
        agreed = provision and yes
        for document in tasks:
            with LocalPorts() as held:
                check_name(runner, document, name)
                if not detach and not of_array(document):
                    hold_ports(held, document, other_ports)
                room = fleets_with_room(project, runner, document, fleet, new_nodes)
                asking = still(lambda: "asking the nodes and packing files")
                with span("submit"), kept_if_submitted(project, room), asking:
                    row = submit_task(
                        project,
                        runner,
                        document,
                        arguments=arguments,
                        fleet_name=fleet,
                        name=name,
                        variables=variables,
                        wait=wait,
                        room=room,
                        makes_nodes=agreed,
                    )
                if row.array is not None:
                    from orch.cli.runs.arrays.verbs import begin

                    code = begin(project, runner, row, detach=detach, as_json=as_json)
                    if code != ExitCode.OK:
                        end(code)
                    continue
                if detach:
                    makes_more = agreed and runner.context(row).folder.has_launch
                    if makes_more:
                        drive_afresh(project, runner, row)
                    elif not early.drive(row.id):
                        drive_behind(runner, row)
                    _print_run(runner, row) if as_json else say(row.name)
                    if makes_more:
                        tell_of_later_nodes(project, room.stacks[row.fleet], row)
                    continue
                if not as_json and row.status == "pending":
                    place = place_text(row, runner.ledger.line(row.fleet))
                    tell(f"run {row.name} waits for nodes of fleet {row.fleet}{place}: {row.message}")
                elif not as_json:
                    tell(f"run {row.name} on fleet {row.fleet}: {nodes_text(row)}")
                row = see_through(project, runner, row, held)
                _show_end(runner, row, as_json=as_json, forwards=held.open)
            code = _code(row)
            if code != ExitCode.OK:
                end(code)


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
        _show_end(runner, row, as_json=as_json, forwards=held.open)
        end(_code(row))


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
        _show_end(runner, ended, as_json=as_json)


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


def _load(file: str, variables: dict[str, str], profile: str | None) -> tuple[Document, ...]:
    from orch.cli.diagnostics import load
    from orch.spec.document.draft import RUNS

    return load(file, launch=RUNS, environ={**os.environ, **variables}, profile=profile)


def _warn_of_unused(tasks: Sequence[Document]) -> None:
    """Tell which tasks have no place for the words after `--`."""
    from orch.spec.document.draft import scalars

    for document in tasks:
        if not any("run.args" in scalar.text for _, scalar in scalars(document.draft.node)):
            span = document.span()
            place = f"{span.file}:{span.line}"
            tell(f"warning: {place}: no `${{{{ run.args }}}}` here uses the words after `--`")


def _show_end(
    runner: RunnerContext, row: RunRow, *, as_json: bool, forwards: Sequence[PortForwarded] = ()
) -> None:
    from orch.cli.output.run import outputs_lines, summary
    from orch.runner.runs.outputs import outputs_left

    if as_json:
        _print_run(runner, row, forwards)
        return
    tell(summary(row, runner.ledger.argument(row.id)))
    for text in outputs_lines(outputs_left(runner.ledger, row)):
        tell(f"  {text}")


def _print_run(runner: RunnerContext, row: RunRow, forwards: Sequence[PortForwarded] = ()) -> None:
    from orch.cli.output.run import SCHEMA, run_json
    from orch.runner.runs.outputs import outputs_left

    data = run_json(row, forwards, left=outputs_left(runner.ledger, row))
    print_json({"schema": SCHEMA, **data}, indent=None)


def _code(row: RunRow) -> ExitCode:
    from orch.runner.runs.lifecycle import exit_code

    return exit_code(row)


def variables_of(items: Sequence[str]) -> dict[str, str]:
    """Variables of `--env` options: `K=V`, or `K` for the caller's own value. Raises BadParameter."""
    from orch.spec.grammar.values import Problem, parse_env_item

    variables: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            if name not in os.environ:
                raise typer.BadParameter(f"{name} is not set here; write {name}=VALUE", param_hint="--env")
            value = os.environ[name]
        try:
            parse_env_item(f"{name}={value}")
        except Problem as problem:
            raise typer.BadParameter(problem.summary, param_hint="--env") from None
        variables[name] = value
    return variables


def _stamp(moment: datetime) -> str:
    """RFC 3339 as log lines have it."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment_of(text: str, now: float | None = None) -> datetime:
    """The moment of `--since`: a time, or an age before `now`, in seconds since the epoch; by default this
    machine's. Raises BadParameter."""
    from datetime import datetime, timedelta, timezone

    from orch.spec.grammar.values import Problem, parse_duration

    try:
        age = parse_duration(text)
    except Problem:
        age = None
    try:
        if age is not None:
            present = datetime.now(timezone.utc) if now is None else datetime.fromtimestamp(now, timezone.utc)
            return present - timedelta(seconds=age)
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is neither a time nor an age", param_hint="--since") from None
