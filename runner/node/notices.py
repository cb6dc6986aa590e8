"""What a cloud announces of a node, as the node tells it: a word `KIND@TIME`, in the ledger too."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORD = re.compile(r"notice=((spot|maintenance|rebalance)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?)")
_WHAT = {
    "spot": "its cloud takes it back",
    "maintenance": "its cloud announces maintenance",
    "rebalance": "its cloud says that it may soon take it back",
}


@dataclass(frozen=True)
class CloudNotice:
    """What is announced of a node: `spot`, `maintenance`, or `rebalance`, which is advice.

    `at`: from when, by the cloud's clock; "" where the cloud does not tell.
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
