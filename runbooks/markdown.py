"""Fenced blocks of Markdown with their places, as CommonMark reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orch.spec.diagnostics import Span
from orch.spec.loader.text import Source


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
        """Where a text stands in the content as a word; the last place, where it is also before `after`."""
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
