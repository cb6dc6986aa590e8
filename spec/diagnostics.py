"""Diagnostics: what is wrong, where, why and what to write instead.

They are shown to people, as JSON, as GitHub's workflow commands, as GitLab's code quality report, and as
SARIF 2.1.0.

`codes.py` has the list of codes.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from urllib.parse import quote

from orch.spec.grammar.values import encodable


class Severity(str, Enum):
    """An error stops everything, a warning stops only with `--strict`, a note never stops."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, order=True, init=False)
class Span:
    """A piece of a file. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __init__(self, file: str, line: int, column: int, end_line: int, end_column: int) -> None:
        # Every value of a file has one, and what a frozen dataclass does here takes three times as long.
        own = self.__dict__
        own["file"], own["line"], own["column"] = file, line, column
        own["end_line"], own["end_column"] = end_line, end_column

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Places:
    """The starts of many spans, indexed for lookups."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts = sorted({(span.file, span.line, span.column) for span in spans})

    def within(self, span: Span) -> bool:
        """Return True if any of the spans starts in `span`."""
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


_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render_github(diagnostics: Iterable[Diagnostic], root: Path | None = None) -> str:
    """One annotation per line, as GitHub Actions reads them from a job's output. Files in the repository at
    `root` are named from there."""
    return "\n".join(_command(each) for each in ordered(within(root, diagnostics)))


def within(root: Path | None, diagnostics: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """The same, files in `root` named from there: settings that were looked for have their whole path."""
    for each in diagnostics:
        related = tuple(replace(other, span=_from(root, other.span)) for other in each.related)
        yield replace(each, span=_from(root, each.span), related=related)


def _from(root: Path | None, span: Span) -> Span:
    path = Path(os.path.abspath(span.file))
    if root is None or span.file == "-" or not path.is_relative_to(root):
        return span
    return replace(span, file=str(path.relative_to(root)))


def _command(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    location = {"file": encodable(span.file), "line": span.line, "col": span.column, "endLine": span.end_line}
    if span.end_line == span.line:
        location["endColumn"] = span.end_column
    location["title"] = diagnostic.code
    properties = ",".join(f"{key}={_property(str(value))}" for key, value in location.items())
    return f"::{_COMMANDS[diagnostic.severity]} {properties}::{_data(_said(diagnostic))}"


def _said(diagnostic: Diagnostic) -> str:
    lines = [diagnostic.summary]
    lines += [diagnostic.detail] if diagnostic.detail else []
    lines += [f"hint: {diagnostic.hint}"] if diagnostic.hint else []
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True)
class RuleText:
    """Report text of a rule that is not a code of orch, such as a policy. `severity`: how grave a breach
    is, from `low` to `critical`; `url`: where the requirement is written."""

    description: str
    remediation: str
    severity: str
    url: str = ""


NO_RULES: Mapping[str, RuleText] = {}

_GRADES = {
    (Severity.ERROR, "critical"): "blocker",
    (Severity.ERROR, "high"): "critical",
    (Severity.ERROR, "medium"): "major",
    (Severity.ERROR, "low"): "major",
    (Severity.ERROR, ""): "critical",
    (Severity.WARNING, "critical"): "major",
    (Severity.WARNING, "high"): "major",
}


def render_gitlab(
    diagnostics: Iterable[Diagnostic],
    root: Path | None = None,
    rules: Mapping[str, RuleText] = NO_RULES,
) -> str:
    """A code quality report of GitLab. `root`: as in `render_github`; `rules`: those behind codes that are no
    code of orch.

    Source: GitLab documentation, "Code Quality report format". GitLab shows one finding of those that have
    the same fingerprint, and none without a severity.
    """
    sorted_ = ordered(within(root, diagnostics))
    report: list[dict[str, object]] = []
    for each, mark in zip(sorted_, fingerprints(sorted_), strict=True):
        rank = rules[each.code].severity if each.code in rules else ""
        rest = "info" if each.severity is Severity.NOTE else "minor"
        report.append(
            {
                "description": _said(each),
                "check_name": each.code,
                "fingerprint": mark,
                "severity": _GRADES.get((each.severity, rank), rest),
                "location": {
                    "path": encodable(Path(each.span.file).as_posix()),
                    "lines": {"begin": each.span.line, "end": each.span.end_line},
                },
            }
        )
    return json.dumps(report, indent=2, ensure_ascii=False)


def fingerprints(diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """A mark for each, which no other one has. It stays the same when the lines above change."""
    seen: dict[str, int] = {}
    for each in diagnostics:
        words = "\0".join((each.code, encodable(each.span.file), each.path, each.summary))
        seen[words] = seen.get(words, 0) + 1
        yield hashlib.sha256(f"{words}\0{seen[words]}".encode()).hexdigest()


def render_sarif(
    diagnostics: Iterable[Diagnostic],
    root: Path | None = None,
    rules: Mapping[str, RuleText] = NO_RULES,
) -> str:
    """One run of a static analysis tool. A replacement becomes a fix. `root`, `rules`: as in
    `render_gitlab`."""
    sorted_ = ordered(within(root, diagnostics))
    codes = sorted({each.code for each in sorted_})
    marks = fingerprints(sorted_)
    run = {
        "tool": {"driver": {"name": "orch", "rules": [_rule(code, rules.get(code)) for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "results": [
            {**_result(each, codes.index(each.code)), "partialFingerprints": {"orchFinding/v1": mark}}
            for each, mark in zip(sorted_, marks, strict=True)
        ],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False)


def _rule(code: str, text: RuleText | None) -> dict[str, object]:
    from orch.spec.codes import CODES

    if text is None:
        return {"id": code, "shortDescription": {"text": CODES.get(code, code)}}
    rule: dict[str, object] = {
        "id": code,
        "shortDescription": {"text": text.description},
        "help": {"text": text.remediation},
        "properties": {"tags": ["policy"], "problem.severity": text.severity},
    }
    return {**rule, "helpUri": text.url} if text.url else rule


def _result(diagnostic: Diagnostic, rule: int) -> dict[str, object]:
    result: dict[str, object] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity.value,
        "message": {"text": _said(diagnostic)},
        "locations": [{"physicalLocation": _location(diagnostic.span)}],
    }
    if diagnostic.related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": other.message}, "physicalLocation": _location(other.span)}
            for number, other in enumerate(diagnostic.related, 1)
        ]
    if diagnostic.replacement is not None:
        change = {
            "artifactLocation": _artifact(diagnostic.span),
            "replacements": [
                {
                    "deletedRegion": _region(diagnostic.span),
                    "insertedContent": {"text": diagnostic.replacement},
                }
            ],
        }
        result["fixes"] = [
            {
                "description": {"text": f"write {diagnostic.replacement.strip() or 'spaces'}"},
                "artifactChanges": [change],
            }
        ]
    return result


def _location(span: Span) -> dict[str, object]:
    return {"artifactLocation": _artifact(span), "region": _region(span)}


def _artifact(span: Span) -> dict[str, str]:
    path = Path(span.file)
    return {"uri": path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": max(span.end_column, span.column if span.end_line == span.line else 1),
    }
