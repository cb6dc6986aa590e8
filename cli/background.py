"""Runs and processes: seeing one through in this process, leaving it to another, driving it from behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from orch.cli.errors import end, mask_threads, tell
from orch.cli.output.redaction import masked
from orch.cli.output.ticking import still
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.stacks.project import Project

LOG = "driver.log"
ENDED = "the driver ended: "


def see_through(project: Project, place: RunnerContext, row: RunRow) -> RunRow:
    """Drive or follow a run to its end; being told to leave, hand it to a process in the background."""
    from orch.cli.output.run import Live
    from orch.runner.ledger.run_names import as_argument
    from orch.runner.private import private_file
    from orch.runner.runs.lifecycle import drive

    def leave(number: int, frame: Any) -> None:
        del number, frame
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    live = place.processor
    try:
        with still(live.status if isinstance(live, Live) else str):
            return drive(place, row)
    except KeyboardInterrupt:
        # A terminal that is closed may send several. Not SIG_IGN, which the other process would inherit.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)
        with private_file(place.context(row).folder.path / LOG).open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "orch.cli.main", "attach", "--supervise", "--", row.name],
                cwd=project.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        name = as_argument(row.name)
        tell(f"\ndetached, the run goes on; `orch attach {name}` follows, `orch stop {name}` ends it")
        end(ExitCode.INTERRUPTED)


def drive_behind(place: RunnerContext, row: RunRow) -> None:
    """Drive a run from a process of its own, which lives as long as the run.

    A fork keeps the imports; it is safe here because threads and connections are ended before it.
    """
    place.connector.hang_up()
    place.ledger.close()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    code = int(ExitCode.BUG)
    try:
        os.setsid()
        log = os.open(place.context(row).folder.path / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        code = supervise(place, row)
    finally:
        # Not sys.exit: the parent's clean-up handlers are not this process's to run.
        os._exit(code)


def supervise(place: RunnerContext, row: RunRow) -> int:
    """Drive a run where nobody looks; the exit code. What ended the driver too early stands in its log.

    No value that jobs are given stands there: that log stays, and may be sent to others.
    """
    given = _given_to_jobs(place, row)
    hide = partial(masked, more=given)
    mask_threads(given)
    try:
        from orch.runner.runs.lifecycle import drive, exit_code

        return int(exit_code(drive(place, row, follow_logs=False)))
    except OrchError as error:
        tell(hide(error.text()))
        tell(hide(f"{ENDED}{' '.join(error.text().splitlines()[0].split())}"))
        return int(error.exit_code)
    except BaseException as error:  # noqa: BLE001 - the border of this process: nobody else tells of it
        tell(hide(traceback.format_exc().rstrip("\n")))
        tell(hide(f"{ENDED}{type(error).__name__}: {' '.join(str(error).split())}"))
        return int(ExitCode.BUG)


def _given_to_jobs(place: RunnerContext, row: RunRow) -> tuple[str, ...]:
    """Values of the variables of a run that has not started yet, but for those that orch itself makes up.

    Afterwards they are nowhere on this machine."""
    from orch.runner.launch.environment import is_set_by_orch

    try:
        found = place.context(row).folder.environments()
    except (OSError, ValueError, OrchError):  # they are gone, or never were here
        return ()
    return tuple({value for each in found for name, value in each.items() if not is_set_by_orch(name)})


def why_undriven(place: RunnerContext, row: RunRow) -> str | None:
    """What ended the last driver of a run that nobody drives, where that driver could still say it."""
    from orch.runner.errors import BadRunName

    try:
        with (place.context(row).folder.path / LOG).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 65_536))
            last = log.read().decode(errors="replace").rstrip().rpartition("\n")[2]
    except (OSError, BadRunName):  # a name that the ledger holds and no folder can have is told of elsewhere
        return None
    return last.removeprefix(ENDED) if last.startswith(ENDED) else None
