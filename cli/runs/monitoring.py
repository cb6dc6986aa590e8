"""`orch metrics serve`, `textfile` and `boards`: a whole project for Prometheus, and what shows it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.driver.opening import open_runner
from orch.cli.errors import UsageError, say, tell
from orch.cli.options import Rehearse
from orch.cli.runs.ports import address_of, cannot_listen
from orch.spec.install import install_hint

if TYPE_CHECKING:
    from collections.abc import Collection

    from orch.runner.ledger.ledger import Ledger
    from orch.runner.metrics.families import ProjectCollector
    from orch.runner.metrics.project_look import FleetCost, ProjectFacts, ProjectWatch
    from orch.runner.runs.context import RunnerContext
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project

LISTEN = "127.0.0.1:9464"
"""The port that OpenTelemetry's specification gives exporters for Prometheus."""
STATE_S = 30.0
"""How long what stacks and files tell is taken for true: a state on a server takes seconds to read."""
TEXTFILE_S = 30.0
"""How long a textfile waits for nodes: no scrape waits for it."""

Fleets = Annotated[
    list[str] | None,
    typer.Option(
        "--fleet", metavar="FLEET", help="Only this fleet; repeatable.", autocompletion=completion.fleets
    ),
]


def serve(
    listen: Annotated[
        str, typer.Option("--listen", metavar="[HOST:]PORT", help="Where to answer; 0 takes any free port.")
    ] = LISTEN,
    fleet: Fleets = None,
    *,
    rehearse: Rehearse = False,
) -> None:
    """Answer Prometheus at /metrics for the whole project, until SIGTERM.

    Nodes, GPUs, fabric, fleets, runs, the queue, cost and health. A scrape takes 8 s at most: a node that
    does not answer has orch_node_up 0. Scrapes within 3 s share one look.
    """
    from orch.cli.output.metrics import serve as listen_at
    from orch.runner.metrics.project_look import ProjectWatch

    address = address_of(listen, "--listen")
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        facts = FactsOf(project, runner, fleet or ())
        facts.require_fleets()
        watch = ProjectWatch(facts, runner.connector, runtimes=runner.runtimes)
        try:
            port, close = listen_at(_collector(watch), *address)
        except OSError as error:
            watch.close()
            raise cannot_listen("`orch metrics serve`", address, "--listen", error) from error
        over = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: over.set())
        tell(f"metrics of project {project.name} on http://{address[0]}:{port}/metrics")
        try:
            over.wait()
        finally:
            watch.close()
            close()


def textfile(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Such as /var/lib/node_exporter/textfile/orch.prom.")
    ],
    fleet: Fleets = None,
    *,
    rehearse: Rehearse = False,
) -> None:
    """Write the same once, for node_exporter's textfile collector: from cron, or from a pipeline.

    The file is written beside its place and renamed, so that nobody reads half of it.
    """
    if path.suffix != ".prom":
        raise UsageError(
            f"{path} does not end in .prom", hint="node_exporter reads files of that ending alone"
        )
    from orch.runner.metrics.project_look import ProjectWatch

    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        facts = FactsOf(project, runner, fleet or ())
        facts.require_fleets()
        watch = ProjectWatch(facts, runner.connector, deadline_s=TEXTFILE_S, runtimes=runner.runtimes)
        try:
            collector = _collector(watch)
            from prometheus_client import CollectorRegistry, write_to_textfile

            registry = CollectorRegistry()
            registry.register(collector)
            write_to_textfile(str(path), registry)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written", detail=error.strerror or str(error), hint="name another file"
            ) from error
        finally:
            watch.close()


def _collector(watch: ProjectWatch) -> ProjectCollector:
    """Raises UsageError where Prometheus's library is not installed."""
    from orch.runner.metrics.families import ProjectCollector

    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        raise without_library(error) from error
    return ProjectCollector(watch.look)


def without_library(error: ModuleNotFoundError) -> UsageError:
    return UsageError(
        "the client library of Prometheus is not installed",
        detail=str(error),
        hint=install_hint("metrics"),
    )


class FactsOf:
    """Facts of a project without its nodes: its ledger at each call, stacks and files now and then.

    If something cannot be read, the former answer stays; `sources` reports it, and the server reports it
    once.
    """

    def __init__(self, project: Project, runner: RunnerContext, fleets: Collection[str]) -> None:
        self._project, self._ledger = project, runner.ledger
        self._only = frozenset(fleets)
        self._fleets: tuple[FleetState, ...] = ()
        self._budgets: dict[str, float] = {}
        self._costs: tuple[FleetCost, ...] = ()
        self._month: tuple[float | None, float | None] = (None, None)
        self._read_at = float("-inf")
        self._sources: dict[str, bool] = {}
        self._told = set[str]()

    def require_fleets(self) -> None:
        """Raises NoSuchFleet where one that was named is not up."""
        from orch.stacks.record.fleets import fleet_state

        for name in sorted(self._only):
            fleet_state(self._project, name)

    def __call__(self) -> ProjectFacts:
        """Raises nothing that a source is at fault for."""
        from orch.runner.metrics.project_look import HealthRow, ProjectFacts, only
        from orch.stacks.project.project import ledger_scope

        if time.monotonic() - self._read_at >= STATE_S:
            self._try("state", self._read_state)
            self._try("files", self._read_files)
            self._try("ledger", self._read_costs)
            self._read_at = time.monotonic()
        facts, health = ProjectFacts(), tuple[HealthRow, ...]()

        def runs() -> None:
            nonlocal facts, health
            periods = self._ledger.health(self._project.name, ledger_scope(self._project))
            health = tuple(map(HealthRow.of, periods))
            facts = ProjectFacts(runs=self._ledger.runs(active_only=True), ended=self._ledger.ended_counts())

        self._try("ledger", runs)
        return only(
            ProjectFacts(
                self._fleets,
                facts.runs,
                facts.ended,
                self._costs,
                health,
                *self._month,
                dict(self._sources),
            ),
            self._only,
        )

    def _try(self, source: str, read: Callable[[], None]) -> None:
        from orch.spec.errors import OrchError

        try:
            read()
        except OrchError as error:
            self._sources[source] = False
            if source not in self._told:
                self._told.add(source)
                tell(f"warning: {error.summary}" + (f": {error.detail}" if error.detail else ""))
            return
        self._sources[source] = True
        self._told.discard(source)

    def _read_state(self) -> None:
        """One fleet whose state cannot be read leaves the others as they are."""
        from orch.spec.errors import OrchError
        from orch.stacks.record.fleets import fleet_of, known_fleets

        found, problem = list["FleetState"](), None
        for stack in known_fleets(self._project).values():
            try:
                found.append(fleet_of(stack))
            except OrchError as error:
                problem = error
        self._fleets = tuple(found)
        if problem is not None:
            raise problem

    def _read_files(self) -> None:
        from orch.spec.models import Fleet
        from orch.stacks.record.fleets import documents_of

        found = documents_of(self._project.root, Fleet, "fleet")
        self._budgets = {
            fleet.name: float(fleet.budget.total)
            for _, fleet in found
            if fleet.budget is not None and fleet.budget.total is not None
        }

    def _read_costs(self) -> None:
        from orch.runner import costs

        ledger: Ledger = self._ledger
        now = ledger.now()
        lives = ledger.node_lives(self._project.name)
        forecast = costs.forecast(lives, now)
        self._month = (forecast.spent, forecast.total)
        self._costs = tuple(
            self._cost(fleet, costs.spent((life for life in lives if life.fleet == fleet), now).dollars)
            for fleet in sorted({*(life.fleet for life in lives), *(each.name for each in self._fleets)})
        )

    def _cost(self, name: str, spent: float) -> FleetCost:
        from orch.runner.metrics.project_look import FleetCost
        from orch.spec.state import hourly_price

        fleet = next((each for each in self._fleets if each.name == name), None)
        if fleet is None:  # it is down
            return FleetCost(name, spent, 0.0, self._budgets.get(name))
        prices = [hourly_price(fleet.backend, node.price_hourly) for node in fleet.nodes]
        known = [price for price in prices if price is not None]
        hourly = sum(known) + (fleet.beside_hourly or 0.0)
        return FleetCost(name, spent, hourly, self._budgets.get(name), len(prices) - len(known))


def boards(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made where it is missing.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")] = False,
) -> None:
    """Write boards for Grafana and alert rules for Prometheus into a folder."""
    from orch.runner.metrics.boards import board_files

    files = board_files()
    try:
        differing = [
            name
            for name, text in files.items()
            if (folder / name).exists() and (folder / name).read_bytes() != text
        ]
        if differing and not force:
            raise UsageError(
                f"{folder / differing[0]} is there and differs",
                detail=f"of {len(files)} files, {len(differing)} differ: {', '.join(differing)}",
                hint="add `--force` to overwrite them, or name another folder",
            )
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text)
    except (OSError, ValueError) as error:  # a path with a null character
        why = error.strerror if isinstance(error, OSError) else None
        raise UsageError(
            f"{folder} cannot be written", detail=why or str(error), hint="name another folder"
        ) from error
    for name in files:
        say(str(folder / name))
