"""What a command writes into files that its user names."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orch.cli.errors import UsageError, tell

if TYPE_CHECKING:
    from orch.spec.loader.load import Loaded


def refuse_overwriting(loaded: Loaded, files: Sequence[str | None], *more: Path) -> None:
    """Raises UsageError for a file that two outputs would get, or that is one of those previewed: of the
    loaded ones, or `more`. No link is followed: it may be a stranger's, and is what would be replaced."""
    sources = [*more, *(each.file for each in loaded.documents)]
    read = {os.path.abspath(each) for each in (*sources, *(each.span.file for each in loaded.diagnostics))}
    written: set[str] = set()
    for file in (each for each in files if each is not None and not _is_stream(Path(each))):
        place = os.path.abspath(file)
        if place in read or place in written:
            raise UsageError(
                "this file is one of those that are previewed"
                if place in read
                else "two outputs go to this file",
                where=file,
                hint="name another file; nothing was written",
            )
        written.add(place)


def print_or_write(text: str, out: str | None) -> None:
    """Print a text, or write it to a file that has all of it or stays as it was. Raises UsageError."""
    if out is None:
        print(text, end="")
        return
    data = text.encode("utf-8", "backslashreplace")  # a file's name may have bytes that are no UTF-8
    try:
        if _is_stream(Path(out)):
            Path(out).write_bytes(data)
        else:
            _replace(Path(out), data)
    except OSError as error:
        raise UsageError(
            "the file cannot be written",
            where=out,
            detail=error.strerror or str(error),
            hint="name a file in a folder that you may write to",
        ) from error
    tell(f"written: {out}")


def require_writable(report: Path | None) -> None:
    """Raises UsageError before anything is done whose report could not be written."""
    try:
        if report is not None:
            report.touch()
    except OSError as error:
        raise UsageError(
            "the report cannot be written there",
            where=str(report),
            detail=error.strerror or str(error),
            hint="name another file with `--report`",
        ) from error


def _is_stream(path: Path) -> bool:
    """Return True for a pipe, a device or a name of one, such as /dev/stdout. Any other link may be a
    stranger's, who chose where it leads: it is replaced."""
    if os.path.islink(path):
        return str(path.parent) in ("/dev", "/dev/fd") or path.is_relative_to("/proc")
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _replace(path: Path, data: bytes) -> None:
    """Write a file that has all of it or stays as it was. Raises OSError."""
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
