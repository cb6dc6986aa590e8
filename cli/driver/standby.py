"""A driver that gets ready beside the command that submits its run: `orch run --detach`.

From a command to the first line of its job, most time goes into loading modules and logging in to nodes. The
work of a detached run is shared by two processes: the driver, a fork of the command that is made first,
before it has loaded much, logs in to the nodes and opens the ledger, while the command reads the task. The
command asks the driver for what it needs of both, so that it loads neither itself, and gives it the run.

Loads nothing but Python's own modules: it comes before all others.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger, Taken
    from orch.runner.ledger.records import RunRow, Waiting
    from orch.runner.ledger.waiting_line import Line
    from orch.runner.runs.seats.early_look import EarlyLook
    from orch.runner.runs.seats.recent_statuses import Statuses
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project

_LENGTH = struct.Struct("!Q")
TRACED = ("TRACEPARENT", "OTEL_TRACES_EXPORTER")
"""Variables by which a command that is traced has the processes that work for it traced too."""
NO_QUESTIONS: Mapping[str, Callable[[Any], object]] = MappingProxyType({})


class Ended(EOFError):
    """The other process has ended, or is not there for this one any more."""


class Link:
    """Connection between a command and its driver, which send each other messages in turn. Raises Ended."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: object) -> None:
        data = pickle.dumps(message)
        try:
            self._end.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise Ended from error

    def receive(self) -> Any:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def close(self) -> None:
        self._end.close()

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            try:
                part = self._end.recv(length - len(data))
            except OSError as error:
                raise Ended from error
            if not part:
                raise Ended
            data += part
        return bytes(data)


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
                with suppress(Ended):
                    code = work(Link(its))
            finally:
                # Not sys.exit: the command's clean-up handlers are not this process's to run.
                os._exit(code)
        its.close()
        self._link = Link(ours)
        self.there = True

    def prepare(self, project: Project, fleet: FleetState | None) -> EarlyLook | None:
        """Have it log in to the nodes of a fleet; what it sees there is the look that is returned."""
        from orch.runner.runs.seats.early_look import EarlyLook

        try:
            self._link.send((project, fleet))
        except Ended:
            self.there = False
        return EarlyLook(fleet, self._statuses) if fleet is not None else None

    def _statuses(self) -> Statuses | None:
        with suppress(Ended):
            return self.ask("look")
        return None

    def ask(self, *request: object, asked: Mapping[str, Callable[[Any], object]] = NO_QUESTIONS) -> Any:
        """The answer to a request; see `serve`. Raises what it met there, and Ended.

        `asked`: what answers questions of the driver about the request; what it raises is passed on.
        """
        if not self.there:
            raise Ended
        failed: BaseException | None = None
        try:
            self._link.send(request)
            kind, value = self._link.receive()
            while kind in asked:
                try:
                    answer = asked[kind](value)
                except BaseException as error:  # noqa: BLE001 - raised below, when nothing is left of the run
                    failed, answer = error, None
                self._link.send(answer)
                kind, value = self._link.receive()
        except Ended:
            self.there = False
            if failed is not None:
                raise failed from None
            raise
        if failed is not None:
            raise failed
        if kind == "error":
            raise value
        return value

    def drive(self, number: int) -> bool:
        """Give it a run, which is all that it does from then on. False: it has ended."""
        with suppress(Ended):
            self.ask("drive", number, {name: os.environ[name] for name in TRACED if name in os.environ})
            self.dismiss()
            return True
        return False

    def dismiss(self) -> None:
        """It ends, unless it was given a run."""
        self.there = False
        self._link.close()


class LentLedger:
    """The ledger of a project, which the driver that stands by has opened: what the submission of a run asks
    it. This process opens its own for all else, and once the driver has ended or has its run.
    """

    def __init__(self, driver: StandbyDriver, url: str) -> None:
        self._driver, self._url = driver, url
        self._own: Ledger | None = None

    def check_name(self, name: str) -> None:
        """See `Ledger.check_name`."""
        self._ask("check_name", name)

    def line(self, fleet: str) -> Line:
        """See `Ledger.line`."""
        return self._ask("line", fleet)

    def placed_on(self, fleet: str) -> tuple[RunRow, ...]:
        """See `Ledger.placed_on`."""
        return self._ask("placed_on", fleet)

    def create(
        self,
        name: str,
        fleet: str,
        nodes: Sequence[str],
        build: Callable[[int], str],
        waiting: Waiting | None = None,
        *,
        priority: int = 0,
        taken: Taken | None = None,
    ) -> RunRow:
        """See `Ledger.create`."""
        number = 0

        def built(given: int) -> str:
            nonlocal number
            number = given
            return build(given)

        asked = {"build": built, **({"taken": taken} if taken is not None else {})}
        with suppress(Ended):
            request = ("create", name, fleet, list(nodes), waiting, priority, taken is not None)
            return self._driver.ask(*request, asked=asked)
        # Where it has ended after it was given the plan, the run may be there.
        if number and (row := self.own.submitted(number)) is not None:
            return row
        return self.own.create(name, fleet, nodes, build, waiting, priority=priority, taken=taken)

    def close(self) -> None:
        """Close this process's own, which is opened again when it is needed."""
        if self._own is not None:
            self._own.close()

    @property
    def own(self) -> Ledger:
        """This process's own."""
        if self._own is None:
            from orch.runner.ledger.ledger import open_ledger

            self._own = open_ledger(self._url)
        return self._own

    def _ask(self, name: str, *words: object) -> Any:
        with suppress(Ended):
            return self._driver.ask("ledger", name, *words)
        return getattr(self.own, name)(*words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def serve(
    link: Link, ledger: Callable[[], Ledger], statuses: Callable[[], Statuses | None]
) -> tuple[int, Mapping[str, str]]:
    """Answer a command until it gives a run, whose number is returned, with the variables of TRACED that the
    command has by then: it waits until that is answered, too.

    `ledger` opens it, at the first request that needs it. Raises Ended with the command.
    """
    while True:
        kind, *words = link.receive()
        try:
            if kind == "drive":
                return words[0], words[1]
            if kind == "look":
                answer: object = statuses()
            elif kind == "create":
                name, fleet, nodes, waiting, priority, asks = words
                build, taken = _Asked(link, "build"), _Asked(link, "taken") if asks else None
                answer = ledger().create(name, fleet, nodes, build, waiting, priority=priority, taken=taken)
            else:
                name, *rest = words
                answer = getattr(ledger(), name)(*rest)
        except Ended:
            raise
        except Exception as error:  # noqa: BLE001 - the command meets it
            link.send(("error", error))
        else:
            link.send(("done", answer))


class _Asked:
    """Asks the command, which has read the task of a run that is written, for its plan or about its nodes."""

    def __init__(self, link: Link, kind: str) -> None:
        self._link, self._kind = link, kind

    def __call__(self, value: object) -> Any:
        self._link.send((self._kind, value))
        answer = self._link.receive()
        if answer is None:
            raise NotBuilt
        return answer


class NotBuilt(Exception):
    """The command could not answer, and tells why itself."""


@dataclass(frozen=True)
class Early:
    """A driver that was made before the command line was read, and what that seems to say."""

    driver: StandbyDriver
    file: str
    fleet: str | None


_VALUED = frozenset({"--name", "-n", "--env", "-e", "--profile", "-P", "--port"})
_early: list[Early] = []


def begin_early(words: Sequence[str], work: Callable[[Link], int]) -> bool:
    """Make the driver of `orch run --detach` before anything else is done. A guess: where the words come to
    something else nobody takes it, and it ends with the command."""
    own = words[: words.index("--")] if "--" in words else words
    if own[:1] != ["run"] or not {"--detach", "-d"} & {*own} or "--rehearse" in own:
        return False
    file = fleet = None
    rest = iter(own[1:])
    for word in rest:
        if word in ("-f", "--file"):
            file = next(rest, None)
        elif word == "--fleet":
            fleet = next(rest, None)
        elif word.startswith("--file="):
            file = word.partition("=")[2]
        elif word.startswith("--fleet="):
            fleet = word.partition("=")[2]
        elif word in _VALUED:
            next(rest, None)
        elif file is None and (word == "-" or not word.startswith("-")):
            file = word
    if file is not None:
        from orch.spec import state  # noqa: F401 - both processes need it, and it takes long to load

        _early.append(Early(StandbyDriver(work), file, fleet))
    return bool(_early)


def early_driver() -> Early | None:
    """The driver that was made early, once."""
    return _early.pop() if _early else None
