"""Opens what the verbs on runs need of a project: its ledger, connections to its nodes, its secrets.

A run needs some of that as early as possible: the fleets, and connections to the nodes of the one that it can
only go to. Nothing is told by what begins early: whoever does the same later tells what is wrong.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, cast

from orch.cli.driver.background import LOG, log_to, supervise
from orch.cli.driver.provisioned import ProjectNow
from orch.cli.driver.standby import LentLedger, Link, StandbyDriver, early_driver, serve
from orch.cli.errors import coloured
from orch.spec.errors import OrchError

if TYPE_CHECKING:
    from orch.runner.connect import ConnectorByKind
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.node_api.connector import Connector
    from orch.runner.runs.context import RunnerContext
    from orch.runner.runs.run_secrets import Secrets
    from orch.runner.runs.seats.early_look import EarlyLook
    from orch.runner.runs.seats.recent_statuses import Statuses
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project
    from orch.stacks.secrets.values import ProjectSecrets


SWITCH_S = 0.0005
"""How long a thread of a driver that gets ready keeps the others waiting."""


@contextmanager
def open_runner(
    path: str | None, *, as_json: bool, rehearse: bool = False, early: EarlyStart | None = None
) -> Iterator[tuple[Project, RunnerContext]]:
    """Open the project and the runner context of a verb; closes connections and ledger at the end.

    `early`: what the verb has begun before."""
    from orch.cli.context import project_at

    project = project_at(path, rehearse=rehearse)
    project.prepare()
    connector = early.connector if early is not None else None
    driver = early.driver if early is not None else None
    ledger = None
    if driver is not None:
        # What comes next, while the driver opens the ledger.
        import orch.cli.driver.new_nodes
        import orch.runner.runs.submit  # noqa: F401

        ledger = cast("Ledger", LentLedger(driver, project.ledger_url))
    runner = runner_of(project, connector or connector_of(project), as_json=as_json, ledger=ledger)
    try:
        yield project, replace(runner, early_look=early.look) if early is not None else runner
    finally:
        runner.connector.close()
        runner.ledger.close()


def runner_of(
    project: Project, connector: Connector, *, as_json: bool = False, ledger: Ledger | None = None
) -> RunnerContext:
    """The runner context of a project, with its ledger, which is opened where none is given. Raises
    LedgerUnusable, NewerLedger."""
    from orch.cli.output.live import Live
    from orch.runner.runs.context import RunnerContext
    from orch.stacks.record.volume_attaching import project_volumes

    if ledger is None:
        from orch.runner.ledger.ledger import open_ledger

        ledger = open_ledger(project.ledger_url)
    # With --json stdout holds one object, so live logs go to stderr.
    out = sys.stderr if as_json else sys.stdout
    return RunnerContext(
        project.dot,
        ledger,
        connector,
        Live(out, colour=coloured(out)),
        secrets=_secrets_of(project),
        volumes=project_volumes(project),
        provisioned=ProjectNow(project, ledger),
    )


def _secrets_of(project: Project) -> Secrets:
    """Return a function that decrypts secrets of the project for its runs. It opens their store at the first
    call."""

    @cache
    def store() -> ProjectSecrets:
        from orch.stacks.secrets.values import ProjectSecrets

        return ProjectSecrets(project)

    return lambda names: store().values(names) if names else {}


@dataclass(frozen=True)
class KnownFleets:
    """A project whose state is files of this machine, and its fleets by name."""

    project: Project
    fleets: dict[str, FleetState]

    def only(self, requested: str | None) -> FleetState | None:
        """The fleet that a run goes to: `requested`, or the one that there is."""
        fleets = [fleet for name, fleet in self.fleets.items() if requested in (None, name)]
        return fleets[0] if len(fleets) == 1 else None


@dataclass(frozen=True)
class EarlyStart:
    """Work started early for a run: a look at nodes, over connections of this process or its driver."""

    look: EarlyLook | None = None
    connector: ConnectorByKind | None = None
    driver: StandbyDriver | None = None

    def drive(self, number: int) -> bool:
        """Give a run to the driver that stands by. False: there is none."""
        return self.driver is not None and self.driver.drive(number)


@contextmanager
def early_start(file: str, requested: str | None, *, detach: bool, rehearse: bool) -> Iterator[EarlyStart]:
    """Begin what a run of a file needs; `requested`: the fleet of the command line.

    `detach`: have a driver stand by, from a fork that nothing may be at work before.
    """
    begun = _take_begun((file, requested) if detach and not rehearse else None)
    if rehearse:  # its nodes are told by a simulated cloud
        yield EarlyStart()
        return
    driver = begun.driver if begun is not None else StandbyDriver(stand_by) if detach else None
    connector = None
    try:
        known = known_fleets(file) if begun is None else None
        fleet = known.only(requested) if known is not None else None
        if begun is not None:
            yield begun
        elif known is not None and driver is not None:
            yield EarlyStart(driver.prepare(known.project, fleet), driver=driver)
        elif known is not None and fleet is not None and (connector := _connector(known.project)) is not None:
            from orch.runner.runs.seats.early_look import EarlyLook

            yield EarlyStart(EarlyLook(fleet, begin_look(connector, fleet)), connector)
        else:
            yield EarlyStart()
    finally:
        if driver is not None:
            driver.dismiss()
        if connector is not None:
            connector.close()


_begun: list[tuple[tuple[str, str | None], EarlyStart]] = []


def begin_before_reading() -> None:
    """Tell a driver that was made early of the fleet that its run seems to go to, before the command line is
    read and checked, which takes as long as a log-in."""
    early = early_driver()
    if early is None:
        return
    known = known_fleets(early.file)
    if known is None:
        early.driver.dismiss()
        return
    look = early.driver.prepare(known.project, known.only(early.fleet))
    _begun.append(((early.file, early.fleet), EarlyStart(look, driver=early.driver)))


def _take_begun(wanted: tuple[str, str | None] | None) -> EarlyStart | None:
    """Return the work that was started for a file and a fleet, and end what was started for others."""
    while _begun:
        guessed, start = _begun.pop()
        if guessed == wanted:
            return start
        if start.driver is not None:
            start.driver.dismiss()
    return None


def _connector(project: Project) -> ConnectorByKind | None:
    try:
        return connector_of(project)
    except OrchError:  # who opens one later tells it
        return None


def known_fleets(file: str) -> KnownFleets | None:
    """The fleets of the project of a file; None where they are not all known at once."""
    from orch.stacks.project.project import find
    from orch.stacks.record.fleets import fleet_of
    from orch.stacks.record.fleets import known_fleets as fleets_up
    from orch.stacks.stack.state import in_plain_files, stacks

    with suppress(OrchError, OSError):
        project = find(None if file == "-" else file)
        if project.local_state is not None and all(in_plain_files(project, name) for name in stacks(project)):
            return KnownFleets(project, {name: fleet_of(stack) for name, stack in fleets_up(project).items()})
    return None


def connector_of(project: Project) -> ConnectorByKind:
    """A connector for the nodes of a project. Raises StackError."""
    from orch.runner.connect import open_connector

    if not project.backends:  # no cloud whose tunnels have keys
        return open_connector()
    from orch.stacks.secrets.values import tunnels

    return open_connector(tunnels=tunnels(project))


def begin_look(connector: ConnectorByKind, fleet: FleetState) -> Callable[[], Statuses | None]:
    """Begin to look at the nodes of a fleet; what is returned waits for the answer."""
    from orch.runner.node.status import CHOICE_S, node_status
    from orch.runner.runs.seats import early_look

    for node in fleet.nodes[:1]:
        with suppress(OrchError):
            connector.of(node)  # loads what connects, so that no thread has to do it beside this one
    return early_look.begin_look(fleet, partial(node_status, connector=connector, deadline_s=CHOICE_S))


def stand_by(link: Link) -> int:
    """Get ready to drive a run, drive it, and give the exit code. Raises Ended with the command."""
    _load_look()
    # Threads that talk to nodes need little time, and soon.
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    # The command finds out which project it is meanwhile.
    loading = _in_background(_load_ledger)
    project, fleet = link.receive()
    connector = connector_of(project)
    statuses = begin_look(connector, fleet) if fleet is not None else lambda: None

    @cache
    def ledger() -> Ledger:
        from orch.runner.ledger.ledger import open_ledger

        return open_ledger(project.ledger_url)

    # One that is not there is made when the command asks for it; what is wrong with it is told then, too.
    loading.join()
    if project.local_ledger is None or project.local_ledger.is_file():
        with suppress(OrchError):
            ledger()
    loading = _in_background(_load_driver)
    number, traced = serve(link, ledger, statuses)
    os.environ.update(traced)
    loading.join()
    sys.setswitchinterval(usual_s)
    runner = runner_of(project, connector, ledger=ledger())
    row = runner.ledger.by_id(number)
    log_to(runner.context(row).folder.path / LOG)
    link.send(("done", None))
    link.close()
    return supervise(runner, row)


def _in_background(load: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=load, name="orch-load", daemon=True)
    thread.start()
    return thread


def _load_ledger() -> None:
    import orch.runner.ledger.ledger  # noqa: F401


def _load_look() -> None:
    """Load the modules that look at nodes. They come first, for log-ins go on by themselves."""
    from orch.runner.connect import load_connectors

    load_connectors()
    import orch.stacks.project.project  # noqa: F401
    from orch.runner.node.status import status_script

    status_script()


def _load_driver() -> None:
    """Load the modules of a driver, so that a submitted run waits for none of them."""
    import orch.cli.output.run
    import orch.cli.output.tracing
    import orch.runner.access.entry
    import orch.runner.runs.lifecycle  # noqa: F401
    from orch.runner.node.container_start import START_TEMPLATES
    from orch.templates import prepare

    prepare(START_TEMPLATES)
