"""Events of a run for its listeners (`Processor`); the runner itself prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Progress of an image that is sent to a node: at the start, at each percent and at the end.

    `total_bytes` is None for a pull; `seconds` is what it took, at the end.
    """

    node: str
    image: str
    done_bytes: int
    total_bytes: int | None
    finished: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class FilesProgress:
    """Progress of a job's archive, which holds its `files`, to a node: once a second."""

    node: str
    done_bytes: int
    total_bytes: int
    finished: bool = False


@dataclass(frozen=True)
class Preparing:
    """Nodes whose first boot the run waits for; empty once it has finished."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class PortForwarded:
    """A port of a rank's job is reached at `address` of this machine while it is attached to the run."""

    rank: int
    node: str
    port: int
    address: str


@dataclass(frozen=True)
class EntryOpened:
    """A dev environment is entered from this machine by `command`; `link` opens it in `ide`."""

    run: str
    command: str
    ide: str | None = None
    link: str | None = None


@dataclass(frozen=True)
class LogLine:
    """One line a rank wrote; `time` is the node's RFC 3339 stamp, `text` has no line end.

    `group`: the group of the task that the rank is of, where that has groups.
    """

    rank: int
    node: str
    time: str
    text: str
    group: str | None = None


@dataclass(frozen=True)
class LogLines:
    """Lines that a rank wrote one after the other and that came at once.

    `stored`: as they are kept, each `TIME TEXT` with its end. A job that writes at full speed tells hundreds
    of thousands a second: whoever shows them takes them as one text.
    """

    rank: int
    node: str
    stored: str
    group: str | None = None

    def texts(self) -> list[str]:
        """What it wrote, without times and line ends."""
        texts = [line.partition(" ")[2] for line in self.stored.removesuffix("\n").split("\n")]
        return [text.rstrip("\r") for text in texts] if "\r" in self.stored else texts

    def each(self) -> Iterator[LogLine]:
        stamps = (line.partition(" ")[0] for line in self.stored.split("\n"))
        for stamp, text in zip(stamps, self.texts(), strict=False):
            yield LogLine(self.rank, self.node, stamp, text, self.group)


@dataclass(frozen=True)
class Notice:
    """A message for the user: a warning, a connection lost or restored, a claim that was taken over."""

    text: str
    level: str = "note"


Event = (
    RunChanged
    | RankChanged
    | ImageProgress
    | FilesProgress
    | Preparing
    | PortForwarded
    | EntryOpened
    | LogLine
    | LogLines
    | Notice
)


class Processor(Protocol):
    """Receives every event, from several threads; must return quickly."""

    def handle(self, event: Event, /) -> None: ...


class Silent:
    """A processor that ignores every event."""

    def handle(self, event: Event, /) -> None:
        del event


class Recorder:
    """A processor that records every event in order, for tests and for callers that read them later.

    Each line of a log is an event of its own."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event, /) -> None:
        self.events += event.each() if isinstance(event, LogLines) else (event,)
