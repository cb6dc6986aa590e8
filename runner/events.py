"""What happens during a run, told to whoever listens; the core itself prints nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RunChanged:
    """The run took a new status."""

    run: str
    status: str
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class RankChanged:
    """One rank took a new status."""

    run: str
    rank: int
    node: str
    status: str
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class ImageProgress:
    """An image travels to a node: told when it begins, at each percent and when it ends.

    `total_bytes` is unknown for a pull."""

    node: str
    image: str
    done_bytes: int
    total_bytes: int | None
    finished: bool = False


@dataclass(frozen=True)
class FilesProgress:
    """What a job starts from, its `files` above all, travels to a node; told once a second."""

    node: str
    done_bytes: int
    total_bytes: int
    finished: bool = False


@dataclass(frozen=True)
class Preparing:
    """Nodes whose first boot is waited for; none once the waiting is over."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class LogLine:
    """One line a rank wrote; `time` is the node's RFC 3339 stamp, `text` has no line end."""

    rank: int
    node: str
    time: str
    text: str


@dataclass(frozen=True)
class Notice:
    """Something worth saying: a warning, a lost and found connection, a claim that was taken over."""

    text: str
    level: str = "note"


Event = RunChanged | RankChanged | ImageProgress | FilesProgress | Preparing | LogLine | Notice


class Processor(Protocol):
    """Receives every event, from several threads; must return quickly."""

    def handle(self, event: Event, /) -> None: ...


class Silent:
    """Hears everything, does nothing."""

    def handle(self, event: Event, /) -> None:
        del event


class Recorder:
    """Keeps every event in order: for tests, and for callers that look afterwards."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event, /) -> None:
        self.events.append(event)
