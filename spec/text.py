"""Bytes to text: a file, or standard input, as one `Source` that knows its lines."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from .diagnostics import Diagnostic, Span

MAX_BYTES = 1024 * 1024

BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # where libyaml counts a new line


@dataclass(frozen=True)
class Source:
    """One text and its lines."""

    file: str
    text: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, file: str, text: str) -> Source:
        return cls(file, text, tuple(BREAK.split(text)))

    def line(self, span: Span) -> str | None:
        return self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else None


def read(file: str) -> Source | Diagnostic:
    """The text of a file, `-` for standard input, or why it cannot be had."""
    if file == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        return decode("<stdin>", data)
    start = Span(file, 1, 1, 1, 1)
    try:
        with Path(file).open("rb") as stream:
            return decode(file, stream.read(MAX_BYTES + 1))
    except FileNotFoundError:
        return Diagnostic("ORCH100", start, "there is no such file", hint="check the path")
    except OSError as error:
        reason = (error.strerror or "the system refused it").lower()
        return Diagnostic("ORCH100", start, f"the file cannot be read: {reason}")
    except ValueError:  # a path with a null character
        return Diagnostic("ORCH100", start, "this is not the path of a file")


def decode(file: str, data: bytes) -> Source | Diagnostic:
    """Bytes to text: UTF-8, with or without a byte order mark (UTF-16 only with one)."""
    start = Span(file, 1, 1, 1, 1)
    if len(data) > MAX_BYTES:
        return Diagnostic(
            "ORCH105", start, "the file is larger than 1 MiB", hint="split it into several files"
        )
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return Source.of(file, data.decode(encoding))
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rsplit(b"\n", 1)[-1].decode("utf-8", "replace")) + 1
        return Diagnostic(
            "ORCH106",
            Span(file, line, column, line, column + 1),
            "this is not UTF-8 text",
            detail=f"byte 0x{data[error.start]:02x} does not belong to any character here",
            hint="save the file as UTF-8",
        )
