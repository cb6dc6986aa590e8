"""Diagnostics: what is wrong, where, why and what to write instead; and how they are shown.

`codes.py` has the list of codes.
"""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from orch.spec.grammar.values import encodable


class Severity(str, Enum):
    """An error stops everything, a warning stops only with `--strict`, a note never stops."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, order=True)
class Span:
    """A piece of a file. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Places:
    """The starts of many spans, indexed for lookups."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts = sorted({(span.file, span.line, span.column) for span in spans})

    def within(self, span: Span) -> bool:
        """Whether any of the spans begins in `span`."""
        first = bisect_left(self._starts, (span.file, span.line, span.column))
        end = (span.file, span.end_line, span.end_column)
        return first < len(self._starts) and self._starts[first] <= end


@dataclass(frozen=True)
class Related:
    """Another place that explains the diagnostic, with a message."""

    span: Span
    message: str


@dataclass(frozen=True)
class Diagnostic:
    """One mistake. `excerpt` is the source line it is on, kept so that stdin can be shown too.

    `path` is the property (`resources.gpu`, `files[0].path`), `replacement` the exact text to put at `span`
    when that is safe without a second look.
    """

    code: str
    span: Span
    summary: str
    severity: Severity = Severity.ERROR
    path: str = ""
    detail: str | None = None
    hint: str | None = None
    replacement: str | None = None
    related: tuple[Related, ...] = ()
    excerpt: str | None = None

    @property
    def order(self) -> tuple[str, int, int, str, str]:
        return (self.span.file, self.span.line, self.span.column, self.code, self.summary)

    def as_dict(self) -> dict[str, object]:
        """The record as it appears in JSON."""
        return {
            **_place(self.span),
            "path": self.path,
            "severity": self.severity.value,
            "code": self.code,
            "summary": self.summary,
            "detail": self.detail,
            "hint": self.hint,
            "replacement": self.replacement,
            "related": [{**_place(other.span), "message": other.message} for other in self.related],
        }


def ordered(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """By file, line and column, each once."""
    return tuple(dict.fromkeys(sorted(diagnostics, key=lambda diagnostic: diagnostic.order)))


def strict(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The same with every warning made an error."""
    return tuple(
        replace(diagnostic, severity=Severity.ERROR)
        if diagnostic.severity is Severity.WARNING
        else diagnostic
        for diagnostic in diagnostics
    )


def render_json(diagnostics: Iterable[Diagnostic]) -> str:
    """`{"schema": 1, "diagnostics": [...]}`, in order."""
    records = [diagnostic.as_dict() for diagnostic in ordered(diagnostics)]
    return json.dumps({"schema": 1, "diagnostics": records}, indent=2, ensure_ascii=False)


def render_human(diagnostics: Iterable[Diagnostic]) -> str:
    """Text for people: place, message, the source line with a caret, the detail and the hint."""
    return "\n".join(_render_one(diagnostic) for diagnostic in ordered(diagnostics))


def property_path(parts: Iterable[str | int]) -> str:
    """`("files", 0, "path")` as `files[0].path`."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _place(span: Span) -> dict[str, object]:
    return {
        "file": encodable(span.file),
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


_WIDEST = 110


def _render_one(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    lines = [_printable(f"{span}: {diagnostic.severity.value} {diagnostic.code}: {diagnostic.summary}")]
    if diagnostic.excerpt is not None:
        lines += _excerpt(diagnostic.excerpt, span)
    if diagnostic.detail:
        lines += (f"  why: {diagnostic.detail}").split("\n")
    lines += [_printable(f"  see: {other.span}: {other.message}") for other in diagnostic.related]
    if diagnostic.hint:
        lines.append(_printable(f"  hint: {diagnostic.hint}"))
    return "\n".join(lines)


def _excerpt(line: str, span: Span) -> list[str]:
    start = min(max(span.column - 1, 0), len(line))
    end = span.end_column - 1 if span.end_line == span.line else len(line)
    end = max(min(end, len(line.rstrip())), start + 1)
    cut = 0
    if len(line) > _WIDEST:
        cut = max(0, min(start - 30, len(line) - _WIDEST))
        line = ("…" if cut else "") + line[cut + bool(cut) : cut + _WIDEST]
        start, end = start - cut, min(end - cut, _WIDEST)
    margin = str(span.line)
    before, marked = line[:start], line[start:end]
    caret = " " * _width(before) + "^" * max(_width(marked), 1)
    return [f"  {margin} | {_printable(line)}".rstrip(), f"  {' ' * len(margin)} | {caret}"]


def _printable(text: str) -> str:
    """A tab as one space; what a terminal would act on (escape sequences in a hostile file) as a question
    mark.
    """
    return "".join(" " if char == "\t" else char if char.isprintable() else "?" for char in text)


def _width(text: str) -> int:
    """Terminal cells: wide East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
