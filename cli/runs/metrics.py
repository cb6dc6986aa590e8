"""`orch metrics`: what a run or a fleet uses, now or as it goes on."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from orch.cli import completion
from orch.cli.driver.opening import open_runner
from orch.cli.errors import UsageError, coloured, end, print_json, say, tell
from orch.cli.options import Json, Rehearse
from orch.cli.runs import monitoring
from orch.cli.runs.containers import with_containers
from orch.cli.runs.ports import Address, address_of, cannot_listen
from orch.cli.targets.moments import moment_of
from orch.cli.targets.names import fleet_or_run
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runner.ledger.records import RunRow
    from orch.runner.metrics.reading import Reading, Target
    from orch.runner.node_api.connector import Connector, NodeResult
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.state import FleetState

BETWEEN_S = 1.0
"""Seconds between the two looks that rates are taken from."""
LIVE_S = 2.0
"""Seconds between two looks of the live view."""


class NameOrVerb(TyperGroup):
    """`orch metrics NAME`: the hidden verb `show`, unless the first word is another verb's: a run or a fleet
    of such a name is `run:NAME` or `fleet:NAME`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        verb = self.commands.get(args[0]) if args else None
        return super().parse_args(ctx, args if verb and not verb.hidden else ["", *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] == "":
            return None, self.commands["show"], args[1:]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        show = self.commands["show"]
        (name,) = (each for each in show.params if each.name == "name")
        return [*super().shell_complete(ctx, incomplete), *name.shell_complete(ctx, incomplete)]


app = typer.Typer(cls=NameOrVerb)
app.command("serve", epilog="Example: orch metrics serve --listen 0.0.0.0:9464")(monitoring.serve)
app.command("textfile", epilog="Example: orch metrics textfile /var/lib/node_exporter/orch.prom")(
    monitoring.textfile
)
app.command("boards", epilog="Example: orch metrics boards monitoring/")(monitoring.boards)


@app.command(
    "show",
    hidden=True,
    epilog="Example: orch metrics train-k3f9. A whole project for Prometheus: orch metrics serve, or orch "
    "metrics textfile PATH; boards and alert rules: orch metrics boards DIR.",
)
def metrics(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FLEET",
            help="Where both have the name, run:NAME or fleet:NAME.",
            autocompletion=completion.fleets_and_runs,
        ),
    ],
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="[HOST:]PORT",
            help="Answer Prometheus at /metrics, until SIGTERM; on 127.0.0.1 without HOST.",
        ),
    ] = None,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="T", help="What was kept of a run since a time (RFC 3339) or an age: 10m, 2h."
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=0, metavar="N", help="What was kept of an attempt; the first is 0."),
    ] = None,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """What a run or a fleet uses: CPU, memory, GPUs and network of each rank or node.

    On a terminal a view that goes on until Ctrl-C or the end of the run, elsewhere one look. CPU and memory
    of a rank are its container's, its GPUs those of its blocks; the network is its node's. Of a run that has
    ended, or with `--since` or `--attempt`, what was kept while somebody was attached or a controller lived.
    """
    from orch.spec.state import FleetState

    address = address_of(serve, "--serve") if serve is not None else None
    past = since is not None or attempt is not None
    if past and address is not None:
        raise typer.BadParameter("it tells what is, `--since` and `--attempt` what was", param_hint="--serve")
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        found = fleet_or_run(project, runner, name, verb="metrics")
        if isinstance(found, FleetState) and past:
            raise UsageError(
                f"{name} is a fleet: what is kept is kept of runs",
                hint="name a run; `orch ps -a` lists them",
            )
        if not isinstance(found, FleetState) and address is None and (past or not found.active):
            _kept(runner, found, since, attempt, as_json)
            return
        if isinstance(found, FleetState):
            watched = Watched(runner, found, None)
        else:
            watched = Watched(runner, None, with_containers(runner, found))
        if address is not None:
            _serve(watched, address)
        elif sys.stdout.isatty() and not as_json:
            _live(watched)
        else:
            _once(watched, as_json)


class Watched:
    """A fleet or a run, and what there is of it to look at."""

    def __init__(self, runner: RunnerContext, fleet: FleetState | None, run: RunRow | None) -> None:
        from orch.runner.ledger.patience import LedgerPatience

        self._runner = runner
        self._patience = LedgerPatience(lambda text: tell(f"warning: {text}"))
        self._fleet = fleet
        self._run = run
        self.kind, self.name = ("run", run.name) if run else ("fleet", fleet.name if fleet else "")
        self.connector: Connector = runner.connector
        self.targets = self._targets()

    def goes_on(self) -> bool:
        """Return True if more figures are to come, as far as a ledger that may be away tells; a run that is
        retried is on other nodes then."""
        from orch.runner.errors import LedgerUnusable

        if self._run is None:
            return True
        attempt = self._run.attempt
        try:
            self._run = self._runner.ledger.by_id(self._run.id)
        except LedgerUnusable as error:
            self._patience.bear(error)
            return True
        self._patience.found()
        if self._run.attempt != attempt:
            self.targets = self._targets()
        return self._run.active

    def _targets(self) -> tuple[Target, ...]:
        from orch.runner.ledger.plans import plan_of
        from orch.runner.metrics.reading import fleet_targets, run_targets

        if self._run is not None:
            plan = plan_of(self._run)
            return run_targets(plan, [self._runner.runtime(node) for node in plan.nodes])
        return fleet_targets(self._fleet) if self._fleet is not None else ()


def _kept(runner: RunnerContext, row: RunRow, since: str | None, attempt: int | None, as_json: bool) -> None:
    """Show the recorded figures of an attempt of a run, by default of the latest."""
    from orch.cli.output.metrics import kept_json, kept_text
    from orch.cli.output.run import moment
    from orch.runner.ledger.plans import plan_of
    from orch.runner.metrics.history import moments
    from orch.runner.metrics.reading import run_targets
    from orch.runner.runs.read_logs import of_attempt

    begin = 0.0 if since is None else moment_of(since, row.now).timestamp()
    row = of_attempt(row, row.attempt if attempt is None else attempt)
    samples = runner.ledger.samples(row.id, row.attempt, since=begin)
    plan = plan_of(row)
    found = moments(run_targets(plan, [runner.runtime(node) for node in plan.nodes]), samples)
    if as_json:
        print_json({"schema": 1, "run": row.name, "attempt": row.attempt, "samples": kept_json(found)})
        return
    what = f"run {row.name}" + (f", attempt {row.attempt}" if row.attempts else "")
    if not found:
        tell(
            f"{what}: nothing was kept of that time; every 10 s it is, while somebody follows a run that runs"
        )
        return
    ends = " to ".join(str(moment(at)) for at in dict.fromkeys((found[0].at, found[-1].at)))
    tell(f"{what}, {ends}: the mean of CPU, GPU and network, the most of memory")
    say(kept_text(found, colour=coloured(sys.stdout)))


def _once(watched: Watched, as_json: bool) -> None:
    from orch.cli.output.metrics import metrics_json, metrics_text, problem_lines
    from orch.runner.metrics.figures import figures
    from orch.runner.metrics.reading import look

    before = look(watched.targets, watched.connector, devices=False)
    time.sleep(BETWEEN_S)
    rows = figures(watched.targets, before, look(watched.targets, watched.connector))
    if as_json:
        print_json({"schema": 1, watched.kind: watched.name, "nodes": [metrics_json(row) for row in rows]})
    elif rows:
        say(metrics_text(rows))
        for line in problem_lines(rows):
            tell(line)
    else:
        tell(f"fleet {watched.name} has no nodes now")
    if rows and all(row.silent for row in rows):
        end(ExitCode.HOSTS)


def _serve(watched: Watched, address: Address) -> None:
    """Until a signal, or the end of the run."""
    from orch.cli.output.metrics import UsageCollector, serve
    from orch.runner.metrics.reading import look

    def looks() -> list[tuple[Target, NodeResult[Reading]]]:
        targets = watched.targets
        return list(zip(targets, look(targets, watched.connector), strict=True))

    try:
        port, close = serve(UsageCollector(watched.kind, watched.name, looks), *address)
    except ModuleNotFoundError as error:
        raise monitoring.without_library(error) from error
    except OSError as error:
        raise cannot_listen("`orch metrics`", address, "--serve", error) from error
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: over.set())
    tell(f"metrics of {watched.kind} {watched.name} on http://{address[0]}:{port}/metrics")
    try:
        while not over.wait(LIVE_S):
            if not watched.goes_on():
                tell(f"run {watched.name} has ended")
                break
    finally:
        close()


def _live(watched: Watched) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from orch.cli.output.metrics import History, metrics_table, problem_lines
    from orch.runner.metrics.figures import figures
    from orch.runner.metrics.reading import look
    from orch.spec.errors import visible

    history, colour = History(), coloured(sys.stdout)
    before = look(watched.targets, watched.connector, devices=False)
    time.sleep(BETWEEN_S)
    with Live(console=Console(no_color=not colour), auto_refresh=False) as live:
        while True:
            targets = watched.targets
            after = look(targets, watched.connector)
            rows = figures(targets, before, after)
            history.add(rows)
            lines = [Text(visible(line)) for line in problem_lines(rows)]
            live.update(Group(metrics_table(rows, history, colour=colour), *lines), refresh=True)
            if not watched.goes_on():
                break
            before = after if watched.targets is targets else look(watched.targets, watched.connector)
            time.sleep(LIVE_S)
    tell(f"run {watched.name} has ended")
