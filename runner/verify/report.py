"""The report on a verification: figures, how they were judged, and shortfalls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MOST_SHOWN = 16
"""Of how many cards or nodes all figures are shown to people."""

Key = tuple[str, str, int]
"""Of a figure: its measure, whose it is ("" for all nodes together), and bytes of a message, else 0."""

Judgement = Literal["ok", "low", "wrong", "no floor"]


@dataclass(frozen=True)
class Row:
    """A figure and how it was judged. `limit`: what it is held against; `basis`: what that is."""

    measure: str
    subject: str
    value: float
    unit: str
    size: int = 0
    limit: float | None = None
    basis: str = ""
    judgement: Judgement = "ok"

    @property
    def key(self) -> Key:
        return self.measure, self.subject, self.size


@dataclass(frozen=True)
class Shortfall:
    """Something that falls short. `nodes`: the names of those that it is about, all of them for a figure of
    all nodes."""

    code: str
    text: str
    nodes: tuple[str, ...]
    kind: Literal["figure", "card", "node", "link", "transport", "values", "health"]


@dataclass(frozen=True)
class Report:
    """A verification that was judged."""

    fleet: str
    rows: tuple[Row, ...]
    shortfalls: tuple[Shortfall, ...]
    notes: tuple[str, ...]
    transport: str
    sentence: str

    @property
    def fine(self) -> bool:
        return not self.shortfalls


def shown_rows(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Those that people read: of a collective the largest size, and those that are held to something; of very
    many cards or nodes the slowest, the quickest, and those that fall short."""
    shown: list[Row] = []
    for measure in dict.fromkeys(row.measure for row in rows):
        of = [row for row in rows if row.measure == measure]
        largest = max(row.size for row in of)
        if largest:
            shown += [row for row in of if row.size == largest or row.judgement != "no floor"]
        elif len(of) <= MOST_SHOWN or measure == "pairs":
            shown += of
        else:
            ends = (min(of, key=lambda row: row.value), max(of, key=lambda row: row.value))
            shown += [row for row in of if row.judgement == "low" or row in ends]
    return tuple(shown)


def size_text(size: int) -> str:
    """`2 GiB`, `4 MiB`, `1000 bytes`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
