"""The text of a runbook in its parts, with their places: what stands before it, YAML between two lines `---`,
and the fenced blocks of Markdown, as CommonMark reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from orch.runbooks.parameters import NAME, TYPES, Parameter
from orch.spec.diagnostics import Diagnostic, Span
from orch.spec.document.compose import parse
from orch.spec.document.text import Source
from orch.spec.document.yaml_nodes import Mapping, Node, Scalar, Sequence
from orch.spec.grammar.values import Problem, check_name, shown
from orch.spec.suggest import hint_for, listed

_TOP = ("name", "summary", "when", "parameters")
_OF_PARAMETER = ("type", "description", "default", "choices", "pattern")


@dataclass(frozen=True)
class FrontMatter:
    """`lines`: how many lines of the text it takes, with those around it."""

    name: str = ""
    summary: str = ""
    when: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict[str, Parameter])
    lines: int = 0


def front_matter(source: Source, found: list[Diagnostic]) -> FrontMatter:
    """The front matter of a text; what is wrong with it goes to `found`."""
    lines = source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start = Span(source.file, 1, 1, 1, 2)
    ends = [at for at, line in enumerate(lines) if at and line.rstrip() == "---"]
    if lines[0].rstrip() != "---" or not ends:
        found.append(
            Diagnostic(
                "ORCH411",
                start,
                "a runbook begins with its front matter",
                hint="write `name`, `summary` and `parameters` between two lines `---` at its top",
            )
        )
        return FrontMatter()
    # Empty lines in the place of the one before keep every place what it is in the file.
    reader = _Reader(source, found)
    node = reader.yaml("\n".join(["", *lines[1 : ends[0]]]))
    return replace(reader.read(node), lines=ends[0] + 1)


def parameter_of(
    source: Source, name: str, text: str, first_line: int, found: list[Diagnostic]
) -> Parameter | None:
    """The parameter that the YAML of a question describes. `first_line`: where the YAML begins."""
    reader = _Reader(source, found)
    node = reader.yaml("\n" * (first_line - 1) + text)
    span = Span(source.file, first_line, 1, first_line, 2)
    if node is None:
        return None
    made = reader.parameter(name, node, span)
    if made is not None and not made.description:
        reader.report(
            "ORCH113", span, "a question has a `description`: what is asked", hint="add `description: …`"
        )
    return made


class _Reader:
    def __init__(self, source: Source, found: list[Diagnostic]) -> None:
        self.source = source
        self.found = found

    def yaml(self, text: str) -> Node | None:
        parsed = parse(Source.of(self.source.file, text))
        self.found += parsed.diagnostics
        return parsed.documents[0] if parsed.documents and not parsed.diagnostics else None

    def read(self, node: Node | None) -> FrontMatter:
        if node is None:
            return FrontMatter()
        entries = self.entries(node, _TOP)
        for name in ("name", "summary"):
            if name not in entries and isinstance(node, Mapping):
                self.report("ORCH113", node.span, f"`{name}` is missing", hint=f"add `{name}: …`")
        name = self.text(entries.get("name"))
        if name:
            self.trying(entries["name"], lambda: check_name(name))
        parameters: dict[str, Parameter] = {}
        at = entries.get("parameters")
        if isinstance(at, Mapping):
            for key, entry in at.entries.items():
                if not NAME.fullmatch(key):
                    self.report(
                        "ORCH115",
                        entry.key.span,
                        f"{shown(key)} is not the name of a parameter",
                        hint="write lower-case letters, digits and `_`, a letter first",
                    )
                elif (made := self.parameter(key, entry.value, entry.key.span)) is not None:
                    parameters[key] = made
        elif at is not None:
            self.report(
                "ORCH112", at.span, "`parameters` is a mapping of names", hint="write `NAME: {type: string}`"
            )
        return FrontMatter(
            name, self.text(entries.get("summary")), self.text(entries.get("when")), parameters
        )

    def parameter(self, name: str, node: Node, span: Span) -> Parameter | None:
        """A parameter of its YAML. None, and reported, when something is wrong with it."""
        before = len(self.found)
        entries = self.entries(node, _OF_PARAMETER)
        if not isinstance(node, Mapping):
            return None
        kind = self.text(entries.get("type")) or "string"
        if kind not in TYPES:
            hint = hint_for(kind, TYPES) or f"write {listed(TYPES)}"
            self.report(
                "ORCH111", entries["type"].span, f"{shown(kind)} is not a type of parameters", hint=hint
            )
            return None
        if ("choices" in entries) != (kind == "choice"):
            what = "`choices` goes with `type: choice`"
            self.report("ORCH159", span, what, hint="write both, or neither")
        if "pattern" in entries and kind != "string":
            self.report(
                "ORCH159", entries["pattern"].span, "`pattern` goes with `type: string`", hint="remove it"
            )
        pattern = self.text(entries.get("pattern")) or None
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                self.report("ORCH112", entries["pattern"].span, f"this is no regular expression: {error}")
        made = Parameter(
            name,
            next(each for each in _types() if each == kind),
            span,
            self.text(entries.get("description")),
            choices=self.choices(entries.get("choices")),
            pattern=pattern,
        )
        if len(self.found) > before:
            return None
        default = entries.get("default")
        if isinstance(default, Scalar):
            value = self.trying(default, lambda: made.value(default.text))
            return None if value is None else replace(made, default=value)
        if default is not None:
            self.report("ORCH112", default.span, "a default is one value")
        return made

    def choices(self, node: Node | None) -> tuple[str, ...]:
        if node is None:
            return ()
        if not isinstance(node, Sequence) or len(node.items) < 2:
            self.report("ORCH117", node.span, "`choices` are two or more", hint="write `choices: [yes, no]`")
            return ()
        return tuple(self.text(each) for each in node.items)

    def entries(self, node: Node, allowed: tuple[str, ...]) -> dict[str, Node]:
        if not isinstance(node, Mapping):
            self.report("ORCH108", node.span, "a mapping is expected here", hint=f"write {listed(allowed)}")
            return {}
        for key, entry in node.entries.items():
            if key not in allowed:
                hint = hint_for(key, allowed) or f"known are {listed(allowed)}"
                self.report("ORCH110", entry.key.span, f"unknown property {shown(key)}", hint=hint)
        return {key: entry.value for key, entry in node.entries.items() if key in allowed}

    def text(self, node: Node | None) -> str:
        if node is None:
            return ""
        if not isinstance(node, Scalar):
            self.report("ORCH112", node.span, "text is expected here")
            return ""
        return "" if node.is_null else " ".join(node.text.split())

    def trying(self, node: Node, do: Any) -> Any:
        try:
            return do()
        except Problem as problem:
            self.report(problem.code, node.span, problem.summary, detail=problem.detail, hint=problem.hint)
            return None

    def report(
        self, code: str, span: Span, summary: str, *, detail: str | None = None, hint: str | None = None
    ) -> None:
        excerpt = self.source.line(span)
        self.found.append(Diagnostic(code, span, summary, detail=detail, hint=hint, excerpt=excerpt))


def _types() -> tuple[Any, ...]:
    return TYPES


@dataclass(frozen=True)
class Fence:
    """A fenced block. `info`: the rest of its first line; `word`: its first word; `heading`: what is above.

    `columns`: how far each line of the content is indented in the file, `first_line` its number there.
    """

    file: str
    info: str
    info_column: int
    content: str
    columns: tuple[int, ...]
    first_line: int
    markup: str
    closed: bool
    heading: str

    @property
    def word(self) -> str:
        return (self.info.split() or [""])[0]

    @property
    def word_at(self) -> int:
        return len(self.info) - len(self.info.lstrip())

    @property
    def head(self) -> Span:
        """The first line, from the backticks on."""
        column = self.info_column - len(self.markup)
        return self._span(self.first_line - 1, column, len(self.markup) + len(self.info.rstrip()))

    @property
    def content_span(self) -> Span:
        """The first line of the content that says something."""
        lines = self.content.split("\n")
        at = next((at for at, line in enumerate(lines) if line.strip()), None)
        if at is None:
            return self.head
        indent = len(lines[at]) - len(lines[at].lstrip())
        return self._span(self.first_line + at, self._column(at) + indent, len(lines[at].strip()))

    def span_of(self, at: int, length: int) -> Span:
        """A piece of `info`."""
        return self._span(self.first_line - 1, self.info_column + at, length)

    def span_in(self, start: int, end: int) -> Span:
        """A piece of the content."""
        before = self.content[:start]
        line = before.count("\n")
        column = start - (before.rfind("\n") + 1)
        length = max(1, len(self.content[start:end].partition("\n")[0]))
        return self._span(self.first_line + line, self._column(line) + column, length)

    def place_of(self, text: str, *, after: str = "") -> Span | None:
        """Return the span of the first place of a text in the content, searching from `after` if given; None
        without one."""
        start = max(self.content.find(after), 0) if after else 0
        at = self.content.find(text, start)
        return self.span_in(at, at + len(text)) if text and at >= 0 else None

    def _column(self, line: int) -> int:
        return self.columns[line] if line < len(self.columns) else 0

    def _span(self, line: int, column: int, length: int) -> Span:
        return Span(self.file, line, column + 1, line, column + 1 + max(length, 1))


def fences(source: Source, skip: int = 0) -> Iterator[Fence]:
    """The fenced blocks of a text, without its first `skip` lines, in their order."""
    from markdown_it import MarkdownIt

    lines = source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    text = "\n".join(["" if at < skip else line for at, line in enumerate(lines)])
    heading, in_heading = "", False
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "heading_open":
            in_heading = True
        elif token.type == "inline" and in_heading:
            heading, in_heading = " ".join(token.content.split()), False
        elif token.type == "fence" and token.map is not None:
            first, end = token.map
            content = token.content.removesuffix("\n").split("\n") if token.content else []
            columns = tuple(
                len(lines[first + 1 + at]) - len(line)
                for at, line in enumerate(content)
                if first + 1 + at < len(lines)
            )
            last = lines[end - 1].strip(" \t>") if 0 < end <= len(lines) else ""
            closed = end - first > len(content) + 1 and bool(last) and set(last) == {token.markup[0]}
            yield Fence(
                source.file,
                token.info,
                lines[first].find(token.markup) + len(token.markup),
                token.content,
                columns,
                first + 2,
                token.markup,
                closed and len(last) >= len(token.markup),
                heading,
            )
