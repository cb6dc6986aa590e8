"""Text to nodes: YAML composed with the C parser's events, and the parser's errors reworded to say what to
write.

Nodes are built from events and not with `yaml.compose`, whose recursion in C does not survive hostile
nesting. Everything a file can do to its reader is bounded: size, depth, and what aliases and merges expand
to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, cast

import yaml

from orch.spec.diagnostics import Diagnostic, Related, Span
from orch.spec.document.bounded import DiagnosticList
from orch.spec.document.text import BREAK, Source
from orch.spec.document.yaml_nodes import Entry, Mapping, Node, Scalar, Sequence
from orch.spec.grammar.values import Problem

MAX_DEPTH = 64
MAX_EXPANDED = 10_000

_CORE_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")
)


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


@dataclass
class Parsed:
    """Documents of one text that could be composed, and what was wrong with it."""

    source: Source
    documents: list[Node] = field(default_factory=list[Node])
    diagnostics: DiagnosticList = field(default_factory=DiagnosticList)


class _Stop(Exception):
    """The rest of the text cannot be read."""


def parse(source: Source) -> Parsed:
    """All documents of a text. Documents before a syntax error are kept, the rest of the text is given up."""
    parsed = Parsed(source)
    composer = _Composer(source, parsed.diagnostics)
    try:
        for node in composer.documents():
            if not (isinstance(node, Scalar) and node.is_null):
                parsed.documents.append(node)
    except _Stop:
        return parsed
    if not parsed.documents and not parsed.diagnostics:
        parsed.diagnostics.append(
            Diagnostic(
                "ORCH107",
                Span(source.file, 1, 1, 1, 1),
                "the file is empty",
                hint="a configuration begins with its type, such as `type: fleet`",
            )
        )
    return parsed


class _Mark(Protocol):
    line: int
    column: int


class _Event(Protocol):
    start_mark: _Mark
    end_mark: _Mark
    anchor: str | None
    tag: str | None
    implicit: tuple[bool, bool]
    value: str


@dataclass
class _Open:
    """A collection whose end has not come yet; in a mapping `key` waits for its value."""

    event: _Event
    anchor: str | None
    is_mapping: bool
    items: list[Node] = field(default_factory=list[Node])
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    merges: list[Node] = field(default_factory=list[Node])
    key: Node | None = None
    key_waits: bool = False
    size: int = 1


class _Composer:
    def __init__(self, source: Source, diagnostics: list[Diagnostic]) -> None:
        self.source = source
        self.found = diagnostics
        self.expanded = 0
        self.anchors: dict[str, Node | None] = {}

    def documents(self) -> Iterator[Node]:
        stack: list[_Open] = []
        last = Span(self.source.file, 1, 1, 1, 1)
        for event in self.events():
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                self.anchors.clear()
                continue
            if kind in ("MappingStartEvent", "SequenceStartEvent"):
                self.check_tag(event)
                if len(stack) >= MAX_DEPTH:
                    self.stop(
                        "ORCH105", self.span(event), f"this is nested more than {MAX_DEPTH} levels deep"
                    )
                if event.anchor:
                    self.anchors[event.anchor] = None
                stack.append(_Open(event, event.anchor, kind == "MappingStartEvent"))
                continue
            if kind == "ScalarEvent":
                self.check_tag(event)
                last = self.span(event)
                node: Node = Scalar(event.value, last, plain=event.implicit[0])
            elif kind == "AliasEvent":
                last = self.span(event)
                node = self.resolve(event.anchor or "", last)
            elif kind in ("MappingEndEvent", "SequenceEndEvent"):
                opened = stack.pop()
                end = self.span(event)
                last = end if end.column != end.end_column else last  # a block has no closing mark of its own
                node = self.close(opened, last)
            else:
                continue
            if kind == "ScalarEvent" and event.anchor:
                self.anchors[event.anchor] = node
            if stack:
                self.place(stack[-1], node)
            else:
                yield node

    def events(self) -> Iterator[_Event]:
        try:
            yield from cast("Iterator[_Event]", yaml.parse(self.source.text, Loader=yaml.CLoader))
        except yaml.MarkedYAMLError as error:
            self.found.append(_syntax_error(self.source, error))
            raise _Stop from None
        except yaml.reader.ReaderError as error:
            self.found.append(_unreadable(self.source, cast(int, error.position)))
            raise _Stop from None
        except UnicodeEncodeError as error:
            self.found.append(_unreadable(self.source, error.start))
            raise _Stop from None

    def span(self, event: _Event) -> Span:
        start, end = event.start_mark, event.end_mark
        return Span(self.source.file, start.line + 1, start.column + 1, end.line + 1, end.column + 1)

    def report(self, code: str, span: Span, summary: str, **more: str | None) -> None:
        excerpt = self.source.line(span)
        self.found.append(Diagnostic(code, span, summary, excerpt=excerpt, **more))  # type: ignore[arg-type]

    def stop(self, code: str, span: Span, summary: str, **more: str | None) -> None:
        self.report(code, span, summary, **more)
        raise _Stop

    def check_tag(self, event: _Event) -> None:
        if event.tag and event.tag != "!" and event.tag not in _CORE_TAGS:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.report(
                "ORCH109",
                self.span(event),
                f"YAML tags such as `{tag[:40]}` mean nothing here",
                hint="remove the tag, or quote the text if `!` belongs to it",
            )

    def resolve(self, anchor: str, span: Span) -> Node:
        node = self.anchors.get(anchor)
        if node is None:
            if anchor in self.anchors:
                self.stop("ORCH105", span, f"the alias `*{anchor}` contains itself")
            hint = f'if the text begins with a star, quote it: `"*{anchor}"`'
            self.stop(
                "ORCH104", span, f"this is a YAML alias, and nothing is anchored as `&{anchor}`", hint=hint
            )
        self.expand(cast(Node, node).size, span)
        return cast(Node, node)

    def expand(self, size: int, span: Span) -> None:
        self.expanded += size
        if self.expanded > MAX_EXPANDED:
            self.stop(
                "ORCH105",
                span,
                f"aliases and merges expand to more than {MAX_EXPANDED:,} values",
                hint="write the values out, or generate the file",
            )

    def place(self, parent: _Open, node: Node) -> None:
        parent.size += node.size
        if not parent.is_mapping:
            parent.items.append(node)
        elif not parent.key_waits:
            parent.key, parent.key_waits = node, True
        else:
            parent.key_waits = False
            self.put(parent, cast(Node, parent.key), node)

    def put(self, parent: _Open, key: Node, value: Node) -> None:
        if not isinstance(key, Scalar):
            hint = (
                'quote it: `"{{ … }}"`' if isinstance(key, Mapping) else "write plain text before the colon"
            )
            self.report("ORCH108", key.span, "a key must be text, this is a list or a mapping", hint=hint)
        elif key.plain and key.text == "<<":
            parent.merges.append(value)
        elif key.text in parent.entries:
            first = parent.entries[key.text].key.span
            self.found.append(
                Diagnostic(
                    "ORCH102",
                    key.span,
                    f"`{key.text}` is set twice, first at {first.line}:{first.column}",
                    path=key.text,
                    hint="remove one of them",
                    related=(Related(first, "first set here"),),
                    excerpt=self.source.line(key.span),
                )
            )
        else:
            parent.entries[key.text] = Entry(key, value)

    def close(self, opened: _Open, last: Span) -> Node:
        start = opened.event.start_mark
        span = Span(self.source.file, start.line + 1, start.column + 1, last.end_line, last.end_column)
        node: Node
        if opened.is_mapping:
            for merged in opened.merges:
                self.merge(opened, merged)
            node = Mapping(opened.entries, span, opened.size)
        else:
            node = Sequence(tuple(opened.items), span, opened.size)
        if opened.anchor:
            self.anchors[opened.anchor] = node
        return node

    def merge(self, into: _Open, value: Node) -> None:
        for part in value.items if isinstance(value, Sequence) else (value,):
            if not isinstance(part, Mapping):
                self.report(
                    "ORCH104",
                    part.span,
                    "`<<` merges mappings, this is none",
                    hint="merge an alias: `<<: *name`",
                )
                continue
            self.expand(len(part.entries), part.span)
            for key, entry in part.entries.items():
                if key not in into.entries:
                    into.entries[key] = entry
                    into.size += entry.value.size + 1


def _syntax_error(source: Source, error: yaml.MarkedYAMLError) -> Diagnostic:
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


def _unreadable(source: Source, position: int) -> Diagnostic:
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
