"""Errors of the YAML parser, reworded to say what to write."""

from __future__ import annotations

import re

import yaml

from orch.spec.diagnostics import Diagnostic, Span
from orch.spec.document.text import BREAK, Source
from orch.spec.grammar.values import Problem

# How the parser's complaints read here. The first pattern found in its message decides.
_REWORDED = (
    (
        "mapping values are not allowed",
        "a colon followed by a space is not expected here",
        "quote the text if the colon belongs to it; else check the indentation of this line",
    ),
    (
        "did not find expected ',' or ']'",
        "this list opened with `[` is not closed as expected",
        "separate items with commas and end with `]`",
    ),
    (
        "did not find expected ',' or '}'",
        "this mapping opened with `{` is not closed as expected",
        "separate entries with commas, quote text that holds braces, and end with `}`",
    ),
    ("while scanning a quoted scalar", "this quoted text has no end", "add the closing quote"),
    (
        "did not find expected '-' indicator",
        "a list item beginning with `-` is expected here",
        "indent this line as what it belongs to",
    ),
    (
        "did not find expected key",
        "a `key: value` line is expected here",
        "check the indentation and the quotes of this and the line before",
    ),
    (
        "could not find expected ':'",
        "this line has no colon",
        "write `key: value`; in a list begin with `- `",
    ),
    ("cannot start any token", "unquoted text cannot begin with this character", "put the text in quotes"),
    (
        "found unknown escape character",
        "this escape is unknown",
        "use single quotes to keep backslashes as they are",
    ),
    (
        "block sequence entries are not allowed",
        "a list item is not expected here",
        "put the list on lines of its own",
    ),
    ("found a tab character", "a tab stands where indentation is expected", "use spaces"),
    (
        "did not find expected <document start>",
        "a new document is expected here",
        "separate documents with a line `---`",
    ),
    ("found undefined tag handle", "YAML tags mean nothing here", "quote the text if `!` belongs to it"),
)


def syntax_error(source: Source, error: yaml.MarkedYAMLError) -> Diagnostic:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    message = f"{error.context or ''} {error.problem or ''}"
    if "while scanning an alias" in message and error.context_mark:
        line, column = error.context_mark.line, error.context_mark.column
        rest = source.lines[line][column:]
        text = re.split(r"\s+#|,\s|[\]}]\s*$", rest)[0].strip() or "*"
        problem = Problem(
            "ORCH104",
            "this is a YAML alias, but no name follows the star",
            hint=f'quote it: `"{text}"`',
            replacement=f'"{text}"' if '"' not in text and "\\" not in text else None,
        )
        return _at(source, problem, line, column, width=len(text))
    tab = _tab_indent(source, line)
    if tab is not None and ("cannot start any token" in message or "tab character" in message):
        return _tabs(source, tab)
    start = error.context_mark
    # A key without its colon is missed only where the text that it became ends, some lines on.
    from_start = "while scanning a quoted scalar" in message or "could not find expected ':'" in message
    if start and (from_start or ("flow" in message and start.line != line)):
        line, column = start.line, start.column
    bare = _without_colon(source, line) if "mapping values are not allowed" in message else None
    if bare is not None:
        line, column, message = bare, len(_indent(source.lines[bare])), "could not find expected ':'"
    for pattern, summary, hint in _REWORDED:
        if pattern in message:
            return _at(source, Problem("ORCH101", summary, hint=hint), line, column)
    problem = Problem("ORCH101", "this is not valid YAML", hint="check quotes and indentation")
    return _at(source, problem, line, column)


def _without_colon(source: Source, line: int) -> int | None:
    """The first of the lines right above, of the same indentation, that are no `key: value`: to YAML they are
    one text with the given line, whose colon does not fit into it.
    """
    indent, first_line = _indent(source.lines[line]), None
    for above in range(line - 1, -1, -1):
        text = source.lines[above]
        if _indent(text) != indent or not re.match(r"[^\s#-]", text.strip()) or re.search(r":(\s|$)", text):
            break
        first_line = above
    return first_line


def _tab_indent(source: Source, line: int) -> int | None:
    """The line indented with a tab: the given one, or (where a block began earlier) the one before."""
    for candidate in (line, line - 1):
        if 0 <= candidate < len(source.lines) and "\t" in _indent(source.lines[candidate]):
            return candidate
    return None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _tabs(source: Source, line: int) -> Diagnostic:
    indent = _indent(source.lines[line])
    others = [
        number + 1
        for number, text in enumerate(source.lines)
        if number != line and "\t" in _indent(text) and text.strip()
    ]
    detail = f"other lines begin with tabs too: {', '.join(map(str, others[:8]))}" if others else None
    if detail and len(others) > 8:
        detail += ", …"
    start = indent.index("\t")
    width = len(indent) - start
    problem = Problem(
        "ORCH103", "a tab indents this line", hint="use spaces", detail=detail, replacement="  " * width
    )
    return _at(source, problem, line, start, width)


def unreadable(source: Source, position: int) -> Diagnostic:
    before = source.text[:position]
    lines = BREAK.split(before)
    char = source.text[position : position + 1]
    problem = Problem(
        "ORCH106",
        f"the character U+{ord(char):04X} does not belong in a text file" if char else "this is not text",
        hint="remove it; in double quotes it can be written as an escape",
    )
    return _at(source, problem, len(lines) - 1, len(lines[-1]))


def _at(source: Source, problem: Problem, line: int, column: int, width: int = 1) -> Diagnostic:
    line = min(line, len(source.lines) - 1)
    if line and column == 0 and not source.lines[line].strip():  # the end of the text: show its last line
        while line and not source.lines[line].strip():
            line -= 1
        column = len(source.lines[line])
    span = Span(source.file, line + 1, column + 1, line + 1, column + 1 + width)
    return Diagnostic(
        problem.code,
        span,
        problem.summary,
        hint=problem.hint,
        detail=problem.detail,
        replacement=problem.replacement,
        excerpt=source.lines[line],
    )
