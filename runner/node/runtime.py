"""The interface of a job runtime: how a job is started, observed and stopped on a node.

`runtimes/` implements it for nodes that have Docker, and for nodes that are containers. A node's record says
which one it has (`NodeState.runtime`). Each call may be repeated, for a driver may die at any point and
another one goes on.
Raises what `Connector.run` raises.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orch.runner.errors import ImageUnavailable, RunFailed
from orch.runner.events import Processor
from orch.runner.node.clock import seconds_of
from orch.runner.node.registry import RegistryLogin
from orch.runner.node_api.connector import Connector, NodeResult
from orch.runner.plan.run_plan import RunPlan
from orch.spec.state import NodeState

_WORD = re.compile(r"notice=((spot|maintenance|rebalance|health|cluster)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?)")
_WHAT = {
    "spot": "its cloud takes it back",
    "maintenance": "its cloud announces maintenance",
    "rebalance": "its cloud says that it may soon take it back",
    "cluster": "its cluster takes the pod away",
    "health": "its health is a failure",
}


@dataclass(frozen=True)
class CloudNotice:
    """What its cloud announces of a node: `spot`, `maintenance`, or `rebalance`, which is advice. `health` is
    no cloud's: the node's own health is a failure, and jobs that another node can take over leave it;
    `cluster` is Kubernetes, which takes a pod away.

    `at`: from when, by the cloud's clock; "" where the cloud does not tell. Nodes tell it as a word,
    `KIND@TIME`, and the ledger keeps that.
    """

    kind: str
    at: str

    @classmethod
    def found(cls, words: str) -> CloudNotice | None:
        """The one among the words of a node's answer."""
        match = _WORD.search(words)
        return None if match is None else cls(match[2], match[3] or "")

    @classmethod
    def recorded(cls, word: str | None) -> CloudNotice | None:
        """The one of the ledger."""
        return cls.found(f"notice={word}") if word else None

    @property
    def word(self) -> str:
        """As the ledger has it."""
        return f"{self.kind}@{self.at}"

    @property
    def interrupts(self) -> bool:
        """Whether jobs are to leave the node."""
        return self.kind != "rebalance"

    def __str__(self) -> str:
        return _WHAT[self.kind] + (f" at {self.at}" if self.at else "")


@dataclass(frozen=True)
class StartedRank:
    """A rank that waits at its barrier, or whose commands have `begun`. `port`: a free rendezvous port, from
    rank 0 only."""

    rank: int
    port: int | None
    blocks: tuple[int, ...]
    notices: tuple[str, ...] = ()
    begun: bool = False


@dataclass(frozen=True)
class ObservedRank:
    """The observed state of one rank: Docker's word, `absent`, or `silent` when its node does not answer.

    `finished_at` is on the node's clock, which is `ahead_s` ahead of this machine's. `notice`: what the cloud
    announces of the node.
    """

    rank: int
    state: str
    exit_code: int | None = None
    out_of_memory: bool = False
    finished_at: str = ""
    marks: frozenset[str] = frozenset()
    detail: str | None = None
    ahead_s: float = 0.0
    notice: CloudNotice | None = None

    @property
    def ended_at(self) -> float | None:
        """When it ended, in seconds since the epoch on this machine's clock; None where that is not known."""
        there = seconds_of(self.finished_at)
        return None if there is None else there - self.ahead_s

    @property
    def process_limit(self) -> int | None:
        """The number of processes and threads that it may have, if the kernel refused it another one."""
        found = (mark.partition("=")[2] for mark in self.marks if mark.startswith("processes="))
        return next((int(number) for number in found if number.isdigit()), None)

    @property
    def ended(self) -> bool:
        return self.state in ("exited", "dead")

    @property
    def alive(self) -> bool:
        return self.state in ("created", "running", "paused", "restarting")


class ImageMissing(ImageUnavailable):
    """The node does not have the image yet."""


class FilesMissing(RunFailed):
    """The node lacks trees of the run's files; it keeps `present`, the one used last first."""

    def __init__(
        self, summary: str, *, trees: tuple[str, ...], present: tuple[str, ...], **fields: str | None
    ) -> None:
        super().__init__(summary, reason="creating_container_error", **fields)
        self.trees = trees
        self.present = present


@dataclass(frozen=True)
class LogPart:
    """The lines of a log to read: all after the first `skip`, the last `tail`, or those since a time (RFC
    3339). `follow`: also the lines that are still to come.
    """

    skip: int = 0
    tail: int | None = None
    since: str | None = None
    follow: bool = False


WHOLE_LOG = LogPart()


class JobRuntime(Protocol):
    """Carries out one rank's job on its node, `plan.ranks[rank].node`."""

    def provide_image(
        self,
        connector: Connector,
        nodes: Sequence[NodeState],
        image: str,
        processor: Processor,
        login: RegistryLogin | None = None,
    ) -> tuple[NodeResult[None], ...]:
        """Make `image` present on `nodes`, with a log-in to its registry where one is given.

        A node's result may carry ImageUnavailable or NodeDiskFull.
        """
        ...

    def start(
        self, connector: Connector, plan: RunPlan, rank: int, archive: Iterable[bytes], *, begin: bool
    ) -> StartedRank:
        """Claim the rank's blocks, unpack `archive` (`stage.py`) and start the job behind its barrier.

        `begin`: without one, where the runtime can do that and the run has no other rank to wait for. What
        has begun once is not begun again.

        The job finds the tree of `plan.files[N]`, which it cannot change, in `/run/orch/files/N`. Raises
        NodesBusy, NodeCordoned, NodePreparing, NodeUnfit, FilesMissing, ImageMissing, NodeDiskFull or
        RunFailed; after the two that say what is missing the blocks stay claimed.
        """
        ...

    def lift_barrier(self, connector: Connector, plan: RunPlan, rank: int, port: int | None) -> None:
        """Let the rank's commands begin, and start its `max_duration` and its `inactivity_duration`.

        Raises HostUnreachable, CommandTimeout; NodeDiskFull or RunFailed where they cannot begin.
        """
        ...

    def observe(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> ObservedRank:
        """Observe the rank. A node that does not answer gives the state `silent`, not an error."""
        ...

    def signal(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        """Send the running rank the run's signal, unless it has had it."""
        ...

    def stop(
        self,
        connector: Connector,
        plan: RunPlan,
        rank: int,
        *,
        kill: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        """Stop the rank, within `stop_duration` or at once. Returns before the rank has ended."""
        ...

    def remove(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        """Remove the rank's container and files from its node and release its blocks. Raises RunnerError."""
        ...

    def hold(self, connector: Connector, plan: RunPlan, rank: int) -> None:
        """Refresh the rank's claims while it has no job yet."""
        ...

    def read_log(
        self,
        connector: Connector,
        plan: RunPlan,
        rank: int,
        on_lines: Callable[[bytes], object],
        part: LogPart = WHOLE_LOG,
        *,
        deadline_s: float | None = None,
        until: threading.Event | None = None,
    ) -> bool:
        """Read the rank's log in whole lines with their ends, each led by its time, until the job ends or
        `until` is set if it is followed. Return False if the node knows of no such job.

        Raises RunFailed when the runtime does not answer.
        """
        ...

    def read_path(
        self, connector: Connector, plan: RunPlan, rank: int, path: str, on_data: Callable[[bytes], None]
    ) -> bool:
        """The file or folder `path` of the rank's job as a tar archive whose first entry is named as it is.

        Also of a job that has ended and was not removed. False where there is no such path, or no such job.
        Raises RunFailed.
        """
        ...

    def write_path(
        self, connector: Connector, plan: RunPlan, rank: int, path: str, archive: Iterable[bytes]
    ) -> None:
        """Unpack a tar archive into the folder `path` of the rank's job, which runs; it is made if missing.

        Raises NodeDiskFull, RunFailed.
        """
        ...

    def is_folder(self, connector: Connector, plan: RunPlan, rank: int, path: str) -> bool:
        """Whether `path` of the rank's running job is a folder."""
        ...

    def job_command(
        self, plan: RunPlan, rank: int, text: str, *, root: bool = False, terminal: bool = False
    ) -> str:
        """Shell text for the rank's node that runs `text` in the rank's running job, as its commands run.

        With their variables, folder and user (`root`: as root there), and its stdin, stdout and exit code;
        `terminal`: these are a terminal.
        """
        ...

    def job_process(self, plan: RunPlan, rank: int) -> str:
        """Shell text for root of the rank's node that prints the number, there, of a process of the job.

        Nothing, or 0, where it does not run.
        """
        ...

    def health_check(self) -> str:
        """Shell text for root of a node that prints nothing where jobs can be started there, else why not."""
        ...
