"""Nodes of a YAML document, every one knowing its place in the text.

A scalar keeps its source text; nothing is turned into numbers or booleans here (`python: 3.10` stays "3.10").
"""

from __future__ import annotations

from typing import NamedTuple

from orch.spec.diagnostics import Span

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class Scalar(NamedTuple):
    """Text as written, quotes and escapes taken off. `plain`: it stood without quotes."""

    text: str
    span: Span
    plain: bool
    size: int = 1

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS


class Sequence(NamedTuple):
    items: tuple[Node, ...]
    span: Span
    size: int


class Mapping(NamedTuple):
    """Entries in order of writing, merged ones last. Each key occurs once."""

    entries: dict[str, Entry]
    span: Span
    size: int


class Entry(NamedTuple):
    key: Scalar
    value: Node


Node = Scalar | Sequence | Mapping
