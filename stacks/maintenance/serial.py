"""How many nodes are worked on at a time, and how many may fail. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT = "1,10%,25%"
"""One node first; when that went well 10 % of them, then 25 % at a time."""


@dataclass(frozen=True)
class Share:
    """Number of nodes, or a percentage of them."""

    number: int
    percent: bool = False

    def of(self, count: int) -> int:
        """Return the number of nodes of `count`. Percentages round down."""
        return count * self.number // 100 if self.percent else self.number

    def __str__(self) -> str:
        return f"{self.number}%" if self.percent else str(self.number)

    @classmethod
    def parse(cls, text: str, *, least: int = 1) -> Share:
        """Reads `4` and `10%`. Raises ValueError."""
        number, percent, rest = text.strip().partition("%")
        if not number.isascii() or not number.isdigit() or rest or int(number) < least:
            raise ValueError("write a number of nodes, `4`, or a share of them, `10%`")
        if percent and int(number) > 100:
            raise ValueError("a share is at most 100%")
        return cls(int(number), bool(percent))


NONE = Share(0)


def parse_serial(text: str) -> tuple[Share, ...]:
    """Reads `4`, `10%` and `1,10%,25%`. Raises ValueError."""
    return tuple(Share.parse(part) for part in text.split(","))


def in_turn(names: Sequence[str], serial: Sequence[Share]) -> tuple[tuple[str, ...], ...]:
    """The names in waves of these sizes, of which the last one repeats. A share is one of all names, and at
    least one name."""
    waves: list[tuple[str, ...]] = []
    begin = 0
    while begin < len(names):
        share = serial[min(len(waves), len(serial) - 1)]
        end = begin + max(1, share.of(len(names)))
        waves.append(tuple(names[begin:end]))
        begin = end
    return tuple(waves)
