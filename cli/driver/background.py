"""Drivers of runs: in this process, handed to a process in the background, or in the background at once.

One that stands by for a run that this process is about to submit is `standby.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.cli.errors import end, mask_threads, tell
from orch.cli.output.ticking import still
from orch.cli.redaction import masked
from orch.runner.errors import LedgerUnusable, RunFailed
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.runner.access.forwards import LocalPorts
    from orch.runner.ledger.records import ArrayKey, RunRow
    from orch.runner.plan.run_plan import RunPlan
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.stacks.project.project import Project

LOG = "driver.log"
# `-m` would look for modules in the project's folder first: a file `queue.py` there is not Python's.
_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()
ENDED = "the driver ended: "
# How long a new driver is waited for that neither drives its run nor ends.
DRIVER_S = 30.0


def see_through(project: Project, runner: RunnerContext, row: RunRow, ports: LocalPorts) -> RunRow:
    """Drive or follow a run to its end; `ports` lead to its jobs meanwhile.

    On Ctrl-C or a closed terminal, a background process takes over.
    """
    from orch.cli.output.live import Live
    from orch.cli.output.tracing import run_spans
    from orch.runner.access.entry import Entering
    from orch.runner.ledger.plans import plan_of
    from orch.runner.plan.run_names import as_argument
    from orch.runner.runs.lifecycle import drive

    def plan() -> RunPlan:
        return plan_of(runner.ledger.by_id(row.id))

    def leave(number: int, frame: Any) -> None:
        del number, frame
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    live = runner.processor
    try:
        with (
            still(live.status if isinstance(live, Live) else str),
            ports.forward(runner.connector, plan, live) as forwarding,
        ):
            forwarding.follow(row.status)
            entering = Entering(runner, row, forwarding)
            entering.follow(row.status)
            with run_spans(entering, row.name) as processor:
                return drive(replace(runner, processor=processor), row)
    except KeyboardInterrupt:
        # A terminal that is closed may send several. Not SIG_IGN, which the other process would inherit.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)
        with suppress(LedgerUnusable):  # the new process waits for it
            now = runner.ledger.by_id(row.id)
            if not now.active:
                return now
        drive_afresh(project, runner, row)
        name = as_argument(row.name)
        tell(f"\ndetached, the run goes on; `orch attach {name}` follows, `orch stop {name}` ends it")
        end(ExitCode.INTERRUPTED)


def drive_afresh(
    project: Project, runner: RunnerContext, row: RunRow, *, array: ArrayKey | None = None
) -> None:
    """Drive a run from a new process, which may make nodes for it, and wait until it does.

    `array`: drive all of it; the run is a member.

    Raises RunFailed where that process ends before it drives the run; one that nobody has begun ends then.
    """
    from orch.runner.private import private_file

    name, folder = row.name if array is None else array.name, runner.context(row).folder
    words = ["attach", "--supervise", *(["--rehearse"] if project.rehearsal else []), "--", name]
    file = (folder.path if array is None else folder.array or folder.path) / LOG
    try:
        with private_file(file).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *_SAFE_PATH, "-m", "orch.cli.main", *words],
                cwd=project.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise _undriven(runner, row, error.strerror or str(error), file) from error
    patience = time.monotonic() + DRIVER_S
    while (code := process.poll()) is None and time.monotonic() < patience:
        try:
            now = runner.ledger.by_id(row.id)
        except LedgerUnusable:
            return  # the driver waits for it
        if now.held or not now.active:
            return
        time.sleep(0.1)
    if code is None:
        return
    now = runner.ledger.by_id(row.id)
    if now.active and not now.held:
        raise _undriven(runner, row, why_undriven(runner, row) or f"it ended with code {code}", file)


def _undriven(runner: RunnerContext, row: RunRow, why: str, log: Path) -> RunFailed:
    """The error for a run whose driver did not start. Nothing of it is anywhere where nobody has begun it:
    then it ends."""
    from orch.runner.plan.run_names import as_argument
    from orch.runner.runs.lifecycle import end_unbegun

    name, text = as_argument(row.name), f"its driver did not start: {why}"
    if row.array is not None:
        array = as_argument(row.array.name)
        hint = f"`orch attach {array}` drives the array, `orch stop {array}` ends it"
        return RunFailed(f"nobody drives array {row.array.name}", where=str(log), detail=text, hint=hint)
    if not end_unbegun(runner, row, text):
        hint = f"`orch attach {name}` drives the run, `orch stop {name}` ends it"
        return RunFailed(f"nobody drives run {row.name}", where=str(log), detail=text, hint=hint)
    hint = "its log there may tell more; without `--detach` the run is driven by the command itself"
    return RunFailed(f"run {row.name} has ended", where=str(log), detail=text, hint=hint)


def drive_behind(runner: RunnerContext, row: RunRow) -> None:
    """Drive a run from a process of its own, which lives as long as the run.

    A fork keeps the imports; it is safe here because threads and connections are ended before it. Not so
    those of the engine's SDK and of clouds: for a driver that makes nodes there is `drive_afresh`.
    """
    runner.connector.hang_up()
    runner.ledger.close()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    code = int(ExitCode.BUG)
    try:
        os.setsid()
        log_to(runner.context(row).folder.path / LOG)
        code = supervise(runner, row)
    finally:
        # Not sys.exit: the parent's clean-up handlers are not this process's to run.
        os._exit(code)


def log_to(file: Path) -> None:
    """Have this process write what it tells to a file, and read nothing. Raises OSError."""
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)


def supervise(runner: RunnerContext, row: RunRow, array: ArrayKey | None = None) -> int:
    """Drive a run, or all of the array that it is a member of, in the background and return the exit code; an
    error of the driver goes into its log.

    The log stays and may be sent to others, so the values of the job's variables are masked in it.
    """
    values = _job_values(runner, row)
    hide = partial(masked, more=values)
    mask_threads(values)
    try:
        from orch.cli.output.tracing import run_spans, tracing
        from orch.runner.access.entry import Entering
        from orch.runner.runs.lifecycle import drive, exit_code

        if array is not None:
            from orch.runner.runs.arrays.drive import ArrayDriver

            with tracing("orch driver"):
                ArrayDriver(runner, array).run()
            return int(ExitCode.OK)
        entering = Entering(runner, row, runner.processor)
        entering.follow(row.status)
        with tracing("orch driver"), run_spans(entering, row.name) as processor:
            return int(exit_code(drive(replace(runner, processor=processor), row, follow_logs=False)))
    except OrchError as error:
        tell(hide(error.text()))
        tell(hide(f"{ENDED}{' '.join(error.text().splitlines()[0].split())}"))
        return int(error.exit_code)
    except BaseException as error:  # noqa: BLE001 - the border of this process: nobody else tells of it
        tell(hide(traceback.format_exc().rstrip("\n")))
        tell(hide(f"{ENDED}{type(error).__name__}: {' '.join(str(error).split())}"))
        return int(ExitCode.BUG)


def _job_values(runner: RunnerContext, row: RunRow) -> tuple[str, ...]:
    """Values of the variables of a run that has not started yet, except for those that orch sets itself.

    After the start this machine keeps none of them."""
    from orch.runner.plan.environment import is_set_by_orch

    try:
        folder = runner.context(row).folder
        if folder.array is not None and folder.has_launch:
            from orch.runner.launch.launch_record import LaunchRecord

            record = LaunchRecord.kept(folder)
            return tuple({*record.caller_env.values(), *record.cli_env.values()})
        environments = folder.environments()
    except (OSError, ValueError, OrchError):  # the run has started, or was submitted elsewhere
        return ()
    return tuple({value for each in environments for name, value in each.items() if not is_set_by_orch(name)})


def why_undriven(runner: RunnerContext, row: RunRow) -> str | None:
    """The error of the last driver of a run without a driver; None where its log has none."""
    from orch.runner.errors import BadRunName

    try:
        with (runner.context(row).folder.path / LOG).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 65_536))
            line = log.read().decode(errors="replace").rstrip().rpartition("\n")[2]
    except (OSError, BadRunName):  # a bad name in the ledger is reported elsewhere
        return None
    return line.removeprefix(ENDED) if line.startswith(ENDED) else None


def begins_elsewhere(runner: RunnerContext, row: RunRow) -> bool:
    """Return True if a run waits for an attempt that can start only on the machine that submitted it."""
    from orch.runner.errors import BadRunName

    try:
        return row.phase == "waiting" and not runner.context(row).folder.has_launch
    except BadRunName:  # reported elsewhere
        return False
