"""Bytes to text: a file, or standard input, as one `Source` that knows its lines."""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from orch.spec.diagnostics import Diagnostic, Span

MAX_BYTES = 1024 * 1024

BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # where libyaml counts a new line

# What a shell hands over as a file: `orch validate <(generate)`.
_STREAM = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/(?:self|[0-9]+)/fd/[0-9]+")


class NoRegularFile(OSError):
    """A pipe with a name, a device or a socket: opening it can wait forever, or do something."""


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
    """The text of a file (`-`: standard input), or the diagnostic that says why it cannot be read."""
    if file == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        return decode("<stdin>", data)
    start = Span(file, 1, 1, 1, 1)
    try:
        return decode(file, content(file))
    except NoRegularFile:
        hint = "`-` is standard input"
        return Diagnostic("ORCH100", start, "this is no regular file", hint=hint)
    except FileNotFoundError:
        return Diagnostic("ORCH100", start, "there is no such file", hint="check the path")
    except OSError as error:
        reason = (error.strerror or "the system refused it").lower()
        return Diagnostic("ORCH100", start, f"the file cannot be read: {reason}")
    except ValueError:  # a path with a null character
        return Diagnostic("ORCH100", start, "this is not the path of a file")


def content(file: Path | str) -> bytes:
    """The bytes of a file, at most one more than `MAX_BYTES`; of pipes only those that a shell made.

    Raises OSError, NoRegularFile for what is neither a file nor a folder, ValueError.
    """
    if _STREAM.fullmatch(str(file)):
        with Path(file).open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    _check_regular(os.stat(file))
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
        _check_regular(os.fstat(stream.fileno()))  # it may be another one by now
        return stream.read(MAX_BYTES + 1)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise NoRegularFile("this is no regular file")


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
