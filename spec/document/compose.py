"""Text to nodes: YAML composed with the C parser's events, and the parser's errors reworded to say what to
write.

Nodes are built from events and not with `yaml.compose`, whose recursion in C does not survive hostile
nesting. Everything a file can do to its reader is bounded: size, depth, and what aliases and merges expand
to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, cast

import yaml

from orch.spec.diagnostics import Diagnostic, Related, Span
from orch.spec.document.bounded import DiagnosticList
from orch.spec.document.syntax_errors import syntax_error, unreadable
from orch.spec.document.text import Source
from orch.spec.document.yaml_nodes import Entry, Mapping, Node, Scalar, Sequence

MAX_DEPTH = 64
MAX_EXPANDED = 10_000

_CORE_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")
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
    """Parse all documents of a text. Documents before a syntax error are kept; the rest is ignored."""
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
            self.found.append(syntax_error(self.source, error))
            raise _Stop from None
        except yaml.reader.ReaderError as error:
            self.found.append(unreadable(self.source, cast(int, error.position)))
            raise _Stop from None
        except UnicodeEncodeError as error:
            self.found.append(unreadable(self.source, error.start))
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
