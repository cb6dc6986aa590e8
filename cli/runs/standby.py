"""A driver that gets ready beside the command that submits its run.

Most of the time from `orch run --detach` to the first line of a job went into loading modules and logging in
to nodes, one after the other, and the log-ins were made again after the fork of the driver. So the driver
comes first: it loads what it needs, logs in and looks at the nodes, while the command reads the task, opens
the ledger and submits.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orch.runner.placement.early_look import EarlyLook, Statuses
    from orch.spec.state import FleetState
    from orch.stacks.project import Project


class Link:
    """What a command and its driver tell each other. Raises EOFError or OSError where the other has ended."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._told = end, end.makefile("rb")
        self._turn = threading.Lock()

    def send(self, message: object) -> None:
        with self._turn:
            self._end.sendall(pickle.dumps(message))

    def receive(self) -> Any:
        return pickle.load(self._told)

    def close(self) -> None:
        self._told.close()
        self._end.close()


class StandbyDriver:
    """The driver, as the command sees it. It ends with the command, unless it was given a run.

    Made before there are threads and connections, for it is a fork. Where it has ended, the command goes on
    without it.
    """

    def __init__(self, work: Callable[[Link], int]) -> None:
        ours, its = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                ours.close()
                os.setsid()
                null = os.open(os.devnull, os.O_RDWR)
                for target in (0, 1, 2):
                    os.dup2(null, target)
                with suppress(EOFError, OSError):
                    code = work(Link(its))
            finally:
                # Not sys.exit: the command's clean-up handlers are not this process's to run.
                os._exit(code)
        its.close()
        self._link = Link(ours)

    def prepare(self, project: Project, fleet: FleetState | None) -> EarlyLook | None:
        """Have it log in to the nodes of a fleet; what it sees there is the look that is returned."""
        from orch.runner.placement.early_look import EarlyLook

        with suppress(OSError):
            self._link.send((project, fleet))
        return EarlyLook(fleet, self._statuses) if fleet is not None else None

    def _statuses(self) -> Statuses | None:
        with suppress(EOFError, OSError):
            return self._link.receive()
        return None

    def drive(self, number: int) -> bool:
        """Give it a run. False: it has ended."""
        with suppress(EOFError, OSError):
            self._link.send(number)
            while self._link.receive() != number:  # what it saw, where nobody has asked for that
                pass
            return True
        return False

    def dismiss(self) -> None:
        """It ends, unless it was given a run."""
        self._link.close()


def stand_by(link: Link) -> int:
    """Get ready to drive a run, drive it, and give the exit code."""
    from orch.runner.connect import load_connectors

    load_connectors()  # first: log-ins go on by themselves
    project, fleet = link.receive()
    from orch.cli.runs.early import begin_look, connector_of

    connector = connector_of(project)
    if fleet is not None:
        statuses = begin_look(connector, fleet)
        threading.Thread(target=_tell, args=(link, statuses), name="orch-tell", daemon=True).start()
    # What a driver uses, so that a run which was submitted waits for none of it.
    import orch.cli.output.run
    import orch.runner.ledger.ledger
    import orch.runner.runs.lifecycle  # noqa: F401
    from orch.cli.runs.background import LOG, log_to, supervise
    from orch.cli.runs.run import runner_of
    from orch.runner.node.container import START_TEMPLATES
    from orch.templates import prepare

    prepare(START_TEMPLATES)
    number = link.receive()
    runner = runner_of(project, connector)
    row = runner.ledger.by_id(number)
    log_to(runner.context(row).folder.path / LOG)
    link.send(number)
    link.close()
    return supervise(runner, row)


def _tell(link: Link, statuses: Callable[[], Statuses | None]) -> None:
    with suppress(OSError):
        link.send(statuses())
