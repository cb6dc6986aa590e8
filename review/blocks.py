"""Blocks of lines, and how a text of them is kept under a size. Comments of all kinds are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_BYTES = 60_000
"""GitHub takes 65,536 characters; bytes are never fewer than characters."""


@dataclass
class Block:
    """Lines that belong together: `head`, rows of any number of lines, `tail`.

    Of `rows`, which stand with the riskiest first, `keep` stay in any case. `noun` is what the rest is
    counted as. `whole`: without a row the block goes too, and is counted by `noun` of the text.
    """

    head: list[str]
    rows: list[list[str]] = field(default_factory=list[list[str]])
    tail: list[str] = field(default_factory=list[str])
    noun: str = "rows"
    keep: int = 0
    whole: bool = False
    dropped: int = 0

    def lines(self) -> list[str]:
        if self.whole and self.dropped and not self.rows:
            return []
        return [*self.head, *(line for row in self.rows for line in row), *self.rest(), *self.tail]

    def rest(self) -> list[str]:
        return (
            ["", f"… {self.dropped} more {self.noun} of lower risk, left out here."] if self.dropped else []
        )

    def size(self) -> int:
        return size_of(self.lines())


@dataclass(frozen=True)
class Fitted:
    """The lines of all blocks; `dropped`: how many rows are left out, `gone`: how many whole blocks are."""

    lines: list[str]
    dropped: int
    gone: int


def size_of(lines: Sequence[str]) -> int:
    """In UTF-8 bytes, with the ends of lines."""
    return sum(len(line.encode()) + 1 for line in lines)


def fit(blocks: Sequence[Block], order: Sequence[Block], most: int) -> Fitted:
    """The blocks in at most so many bytes, as far as their rows may go.

    `order`: which lose rows, the first of them first; each from its end.
    """
    total = sum(block.size() for block in blocks)
    for block in order:
        if total <= most:
            break
        total -= block.size()
        rows = sum(map(size_of, block.rows))
        around = size_of(block.head) + size_of(block.tail)
        while total + around + rows + size_of(block.rest()) > most and len(block.rows) > block.keep:
            rows -= size_of(block.rows.pop())
            block.dropped += 1
        total += block.size()
    return Fitted(
        [line for block in blocks for line in block.lines()],
        sum(block.dropped for block in blocks),
        sum(block.whole and bool(block.dropped) and not block.rows for block in blocks),
    )
