"""Diagnostics for machines: JSON, GitHub's workflow commands, SARIF 2.1.0."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from orch.spec.codes import CODES
from orch.spec.diagnostics import Diagnostic, Severity, Span, ordered, render_json
from orch.spec.grammar.values import encodable

__all__ = ["render_github", "render_json", "render_sarif"]

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


def render_sarif(diagnostics: Iterable[Diagnostic], root: Path | None = None) -> str:
    """One run of a static analysis tool. A replacement becomes a fix. `root`: as in `render_github`."""
    sorted_ = ordered(within(root, diagnostics))
    rules = sorted({each.code for each in sorted_})
    run = {
        "tool": {
            "driver": {
                "name": "orch",
                "rules": [
                    {"id": code, "shortDescription": {"text": CODES.get(code, code)}} for code in rules
                ],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, rules.index(each.code)) for each in sorted_],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False)


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
