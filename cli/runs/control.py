"""`orch reconcile` and `orch controller`: runs go on without the command that submitted them."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.driver.background import begins_elsewhere
from orch.cli.driver.opening import open_runner
from orch.cli.errors import end, print_json, tell
from orch.cli.options import Json, Rehearse
from orch.cli.runs.ports import Address, address_of, cannot_listen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from http.server import ThreadingHTTPServer

    from orch.runner.events import Notice
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.runs.context import RunnerContext
    from orch.runner.runs.controller import Controller
    from orch.runner.runs.lifecycle import Advanced
    from orch.stacks.project.project import Project


def reconcile(as_json: Json = False, rehearse: Rehearse = False) -> None:
    """One pass over the runs that nobody drives: go on with them, begin those that wait, clean up.

    Then it removes fleets whose `ttl` is over, what is left of nodes that ended themselves, and what killed
    calls left, examines nodes whose `health.interval` is over, and replaces those that failed where their
    fleet has `auto_replace`. For cron and CI. Exits with 0 when all runs could be looked at, else with the
    code of the first that could not; with 9 when the credentials are those of another account than a fleet's
    that it was to change; with 7 when a node that was to be replaced is not, and does not wait for runs to
    end.
    """
    with open_runner(None, as_json=as_json, rehearse=rehearse) as (project, runner):
        from orch.cli.output.progress import watching
        from orch.cli.output.run import SCHEMA
        from orch.runner.runs.lifecycle import reconcile_once
        from orch.stacks.errors import OtherAccount
        from orch.stacks.health.healing import NotReplaced
        from orch.stacks.runs.sweep import sweep

        passes = reconcile_once(runner, begin=True)
        elsewhere = [begins_elsewhere(runner, each.after) for each in passes]
        with watching(as_json=as_json) as listener:
            swept = sweep(project, listener)
        for text in record_nodes(project, runner.ledger):
            tell(f"warning: {text}")
        news: list[Notice] = []
        for each in see_to_health(project, runner):
            news.append(each)
            tell(f"{'warning: ' if each.level == 'warning' else ''}{each.text}")
    if as_json:
        runs = [_pass_json(each, away) for each, away in zip(passes, elsewhere, strict=True)]
        fleets = [
            {"fleet": each.fleet, "done": each.done, "error": each.error and each.error.summary}
            for each in swept
        ]
        health = [
            {"text": each.text, "level": "warning" if each.level == "warning" else "info"} for each in news
        ]
        print_json({"schema": SCHEMA, "runs": runs, "fleets": fleets, "health": health}, indent=None)
    else:
        for each, away in zip(passes, elsewhere, strict=True):
            if each.error is None:
                where = " (begins only where it was submitted)" if away else ""
                tell(f"run {each.before.name}: {_change(each)}{where}")
        for each in swept:
            tell(f"fleet {each.fleet}: {each.done}")
        if not passes and not swept and not news:
            tell("nothing to do: no run is active without a driver")
    for each in swept:
        if each.error is not None:
            tell(each.error.text())
    failed = next((each.error for each in passes if each.error is not None), None)
    foreign = next((each.error for each in swept if isinstance(each.error, OtherAccount)), None)
    if (first := failed or foreign) is not None:
        end(first.exit_code)
    if left := [each.exit_code for each in news if isinstance(each, NotReplaced)]:
        end(max(left))


def record_nodes(project: Project, ledger: Ledger) -> Sequence[str]:
    """Record which nodes the project's fleets have, for `orch cost`; what could not be looked at."""
    from orch.stacks.plans.request import ended_nodes_if_told
    from orch.stacks.record.node_accounts import record_all

    return record_all(project, ledger, ended_nodes_if_told).problems


def see_to_fleets(project: Project, ledger: Ledger) -> Iterator[Notice]:
    """Remove what fleets have left and nobody else removes, and record their nodes; yield notices."""
    from orch.cli.output.progress import watching
    from orch.runner.events import Notice
    from orch.stacks.runs.sweep import sweep

    with watching(as_json=True) as listener:
        swept = sweep(project, listener)
    for each in swept:
        why = f": {each.error.summary}" if each.error is not None else ""
        yield Notice(f"fleet {each.fleet}: {each.done}{why}", "warning" if each.error else "info")
    for text in record_nodes(project, ledger):
        yield Notice(text, "warning")


def see_to_health(project: Project, runner: RunnerContext) -> Iterator[Notice]:
    """Examine the nodes of all fleets whose `health.interval` is over, and replace those that failed, where
    their fleet says so; what changed."""
    from orch.cli.maintenance.checks import in_order
    from orch.cli.output.progress import watching
    from orch.runner.events import Notice
    from orch.spec.errors import OrchError
    from orch.stacks.errors import Interrupted
    from orch.stacks.health.healing import Healer, NotReplaced
    from orch.stacks.health.watch import news, watch_due
    from orch.stacks.record.fleets import fleet_of, known_fleets

    for name, stack in known_fleets(project).items():
        try:
            watched = watch_due(project, runner.ledger, runner.connector, fleet_of(stack))
        except OrchError as error:
            yield Notice(f"fleet {name}: its nodes could not be examined: {error.summary}", "warning")
            continue
        for text, level in news(watched):
            yield Notice(text, level)
    with watching(as_json=True) as listener:
        healer = Healer(project, runner, listener, in_order(project, runner))
        for name, stack in known_fleets(project).items():
            try:
                yield from healer.heal(stack)
            except Interrupted:
                raise
            except OrchError as error:
                words = f"fleet {name}: its nodes could not be seen to: {error.summary}"
                yield NotReplaced(words, "warning")


def _change(each: Advanced) -> str:
    before, after = each.before.status, each.after.status
    return after if before == after else f"{before} -> {after}"


def _pass_json(each: Advanced, elsewhere: bool) -> dict[str, Any]:
    return {
        "run": each.before.name,
        "before": each.before.status,
        "status": each.after.status,
        "begins_elsewhere": elsewhere,
        "error": None if each.error is None else each.error.summary,
    }


def controller(
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="[HOST:]PORT", help="Answer GET /healthz here; on 127.0.0.1 without HOST."
        ),
    ] = None,
    rehearse: Rehearse = False,
) -> None:
    """`orch reconcile` in a loop, until SIGTERM. Any number may run at once.

    It goes on with runs whose driver is gone and begins those that wait, where it has what they were
    submitted with: run it in the project's folder. Every five minutes it removes what fleets have left. It
    examines nodes by their fleet's `health.interval`.
    """
    address = address_of(listen, "--listen") if listen is not None else None
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        from orch.runner.runs.controller import Controller
        from orch.stacks.engine.process import end_calls

        loop = Controller(
            runner,
            lambda: see_to_fleets(project, runner.ledger),
            lambda: see_to_health(project, runner),
        )

        def leave(number: int, frame: object) -> None:
            del number, frame
            loop.stop()
            end_calls()  # nodes may be about to be made for a run: what exists by then is recorded

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, leave)
        with _health(loop, address):
            tell(f"controller of {runner.dot.parent}: at work")
            loop.run()
        tell("controller: ended")


@contextmanager
def _health(loop: Controller, address: Address | None) -> Iterator[None]:
    """Answer health checks from a thread while the controller is at work."""
    if address is None:
        yield
        return
    try:
        server = _server(loop, address)
    except OSError as error:
        raise cannot_listen("the controller", address, "--listen", error) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="orch-health", daemon=True)
    thread.start()
    host, port = server.server_address[:2]
    tell(f"controller: health on http://{host!s}:{port}/healthz")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _server(loop: Controller, address: Address) -> ThreadingHTTPServer:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Health(BaseHTTPRequestHandler):
        """GET /healthz: 200 while the controller gets along, 503 while it does not."""

        timeout = 10.0

        def do_GET(self) -> None:
            known = self.path in ("/healthz", "/")
            told = {
                "schema": 1,
                "well": loop.well,
                "last_pass_s": round(loop.passed_s, 1),
                "runs": loop.at_work,
            }
            body = json.dumps(told if known else {"schema": 1}).encode() + b"\n"
            self.send_response(404 if not known else 200 if loop.well else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not told."""

    return ThreadingHTTPServer(address, Health)
