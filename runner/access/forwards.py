"""Ports of a job that are reached at this machine's loopback while a command is attached to its run.

A port here is taken before the run is submitted, so that one which another program has is told in time; it
leads to the job from the moment the run is running until the command leaves.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from orch.runner.errors import PortTaken
from orch.runner.events import Event, Notice, PortForwarded, Processor, RunChanged
from orch.runner.node_api.connector import Connector
from orch.runner.plan.run_plan import RankPort, RunPlan

LOOPBACK = "127.0.0.1"
# Statuses of a run whose commands may listen.
_OPEN = ("running", "terminating")


@dataclass(frozen=True)
class PortRequest:
    """A port of a rank's job that this machine shall reach. `local` is None for any free port here."""

    job: int
    local: int | None = None
    rank: int = 0


def requested_ports(plan: RunPlan) -> tuple[PortRequest, ...]:
    """The `ports` of a run's task."""
    return tuple(PortRequest(port.job, port.local, rank.rank) for rank in plan.ranks for port in rank.ports)


def replaced(ports: Iterable[PortRequest], others: Iterable[RankPort]) -> tuple[PortRequest, ...]:
    """`ports` with `others` in place of those that lead to the same port of the same job.

    Where several jobs have such a port it is the one of the lowest rank; a port of no job there is rank 0's.
    """
    ports = tuple(ports)
    ranks = {port.job: port.rank for port in reversed(ports)}
    added = tuple(PortRequest(port.job, port.local, ranks.get(port.job, 0)) for port in others)
    taken = {(port.job, port.rank) for port in added}
    return (*(port for port in ports if (port.job, port.rank) not in taken), *added)


class LocalPorts:
    """Ports of this machine that are held for a run until the block is left."""

    def __init__(self) -> None:
        self._held: list[tuple[PortRequest, socket.socket]] = []
        self.open: tuple[PortForwarded, ...] = ()

    def __enter__(self) -> LocalPorts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, listener in self._held:
            listener.close()

    def hold(self, request: PortRequest) -> None:
        """Take the port. Raises PortTaken."""
        self._hold(request, request.local)

    def _hold(self, request: PortRequest, local: int | None) -> None:
        listener = socket.socket()
        try:
            # A port that a command before this one has just left is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, local or 0))
            # Bound alone it could be listened on by another program meanwhile.
            listener.listen()
        except OSError as error:
            listener.close()
            raise _taken(request, error) from error
        self._held.append((request, listener))

    def hold_again(self, local: dict[PortRequest, int]) -> tuple[PortTaken, ...]:
        """Take the ports again that a forwarding closed, the same ones; what another program has by now is
        returned, and held no more."""
        requests, self._held = [request for request, _ in self._held], []
        taken: list[PortTaken] = []
        for request in requests:
            try:
                self._hold(request, local.get(request, request.local))
            except PortTaken as error:
                taken.append(error)
        return tuple(taken)

    def forward(self, connector: Connector, plan: Callable[[], RunPlan], processor: Processor) -> Forwarding:
        """The forwarding of the held ports to the jobs of a run; `processor` is told of each.

        `plan` gives the run's plan, which is another one in each attempt.
        """
        return Forwarding(self, connector, plan, processor)

    @property
    def held(self) -> tuple[tuple[PortRequest, socket.socket], ...]:
        """The held ports with their listeners."""
        return tuple(self._held)


class Forwarding:
    """A processor that passes every event on, and opens the ports when the run is running.

    Until the block is left; a client that comes before something listens in the job is closed. While the run
    waits for another attempt they lead nowhere.
    """

    def __init__(
        self,
        ports: LocalPorts,
        connector: Connector,
        plan: Callable[[], RunPlan],
        processor: Processor,
    ) -> None:
        self._ports, self._plan = ports, plan
        self._connector, self._processor = connector, processor
        self._forwards = ExitStack()

    def __enter__(self) -> Forwarding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forwards.close()

    def handle(self, event: Event, /) -> None:
        self._processor.handle(event)
        if isinstance(event, RunChanged):
            self.follow(event.status)

    def follow(self, status: str) -> None:
        """Open the ports if a run of this status may have something that listens; once for each attempt."""
        if status == "pending" and self._ports.open:
            self._close()
        if status not in _OPEN or self._ports.open or not self._ports.held:
            return
        plan = self._plan()
        forwards: list[PortForwarded] = []
        for request, listener in self._ports.held:
            node = plan.ranks[request.rank].node
            local = self._forwards.enter_context(
                self._connector.forward(node, request.job, listener=listener)
            )
            forwards.append(PortForwarded(request.rank, node.name, request.job, f"{LOOPBACK}:{local}"))
        self._ports.open = tuple(forwards)
        for forward in forwards:
            self._processor.handle(forward)

    def _close(self) -> None:
        """Close the forwardings of an attempt that is over, and keep their ports for the next one."""
        self._forwards.close()
        pairs = zip(self._ports.held, self._ports.open, strict=True)
        local = {request: int(forward.address.rpartition(":")[2]) for (request, _), forward in pairs}
        self._ports.open = ()
        for error in self._ports.hold_again(local):
            self._processor.handle(Notice(f"{error.summary}: it is forwarded no more", "warning"))


def _taken(request: PortRequest, error: OSError) -> PortTaken:
    free = f'`"*:{request.job}"` takes any free port'
    if error.errno == errno.EACCES:
        return PortTaken(
            f"port {request.local} of this machine is not yours to listen on",
            detail="ports below 1024 are root's",
            hint=f'write `"8{request.job:03}:{request.job}"`, or another one from 1024 on; {free}',
        )
    if error.errno == errno.EADDRINUSE and request.local is not None:
        return PortTaken(
            f"port {request.local} of this machine is taken",
            detail="another program listens there, or another command that is attached to a run",
            hint=f"{free}, and `--port OTHER:{request.job}` another one for this time",
        )
    return PortTaken(
        f"port {request.local or 'any'} of this machine cannot be listened on",
        detail=os.strerror(error.errno) if error.errno else str(error),
        hint=free,
    )
