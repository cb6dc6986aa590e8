"""Packs of contents: written one after the other, each content once, and read again piece by piece."""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from orch.runner.errors import BadTask, LedgerUnusable, RunFailed
from orch.runner.private import private_file
from orch.runner.upload.selection import KEY_SIZE, SelectedEntry, text_of_a_key
from orch.runner.upload.tree import TreeEntry

LARGE = 64 << 20

PACK = 256 << 20

CHUNK = 1 << 18


def stamp_of(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


class PackWriter:
    """Appends contents to new packs; a pack counts once it has its name."""

    def __init__(self, folder: Path, db: sqlite3.Connection) -> None:
        self._folder = folder
        self._db = db
        self._stream: BinaryIO | None = None
        self._staged = folder / f".pack.{secrets.token_hex(8)}"
        self._size = 0
        self._rows: list[tuple[str, int]] = []
        self._added: set[str] = set()

    def add(self, entry: SelectedEntry, *, copied: bool) -> tuple[str, bool]:
        """The digest of a file, and whether its text looks like a key; its content is kept if `copied`."""
        digest, size, head = hashlib.sha256(), 0, b""
        stream = self._pack() if copied else None
        start = self._size
        try:
            with open(entry.source, "rb", buffering=0) as source:
                while chunk := source.read(CHUNK):
                    head = head or chunk
                    size += len(chunk)
                    digest.update(chunk)
                    if stream is not None:
                        stream.write(chunk)
                changed = (
                    stamp_of(os.fstat(source.fileno())) != stamp_of(entry.status)
                    or size != entry.status.st_size
                )
        except OSError as error:
            if error.filename is None:
                raise
            raise _unreadable(entry, error.strerror or str(error)) from error
        if changed:
            raise _unreadable(entry, "it changed while it was read")
        content = digest.hexdigest()
        if stream is not None:
            known = (
                content in self._added
                or self._db.execute("select 1 from kept where content = ?", (content,)).fetchone()
            )
            if known:
                stream.seek(start)
                stream.truncate()
            else:
                self._rows.append((content, start))
                self._added.add(content)
                self._size += size
            if self._size >= PACK:
                self.finish()
        return content, size <= KEY_SIZE and text_of_a_key(head, size)

    def finish(self) -> None:
        """Give the pack its name, and record what it holds."""
        if self._stream is None:
            return
        self._stream.close()
        self._stream = None
        if self._rows:
            name = f"{secrets.token_hex(8)}.pack"
            self._staged.rename(self._folder / name)
            self._db.executemany(
                "insert or ignore into kept values(?, ?, ?)",
                [(content, name, start) for content, start in self._rows],
            )
            self._db.execute("insert into pack values(?, ?, ?)", (name, self._size, time.time()))
            self._db.commit()  # others who submit do not wait for the rest
        else:
            self._staged.unlink()
        self._size, self._rows = 0, []

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._staged.unlink(missing_ok=True)

    def _pack(self) -> BinaryIO:
        if self._stream is None:
            self._stream = private_file(self._staged).open("r+b")
        return self._stream


def _unreadable(entry: SelectedEntry, why: str) -> BadTask:
    return BadTask(
        f"{entry.source} cannot be packed",
        detail=why,
        hint="make it readable, leave it as it is while it is packed, or name it in .orchignore",
    )


def unusable(folder: Path, error: Exception) -> LedgerUnusable:
    return LedgerUnusable(
        "what the run takes along cannot be kept on this machine",
        where=str(folder),
        detail=getattr(error, "strerror", None) or str(error),
        hint="is `.orch` writable, and is there space on the disk?",
    )


def gone(why: str) -> RunFailed:
    return RunFailed(
        "the files of this run cannot be sent", detail=why, hint="submit it again", reason="executor_error"
    )


class ContentReader:
    """Reads contents by their digests; several threads may use one. Its files are open until `close`."""

    def __init__(self, places: dict[str, tuple[Path, int]]) -> None:
        self._places = places
        self._open: dict[Path, int] = {}

    def prepare(self) -> None:
        """Open the packs, so that nobody takes them away while they are read. Raises RunFailed."""
        for path, _ in self._places.values():
            if path.suffix == ".pack" and path not in self._open:
                try:
                    self._open[path] = os.open(path, os.O_RDONLY)
                except OSError as error:
                    raise gone(str(error)) from error

    def read(self, entry: TreeEntry) -> Iterator[bytes]:
        """The content of a file in pieces. Raises RunFailed when it is not what it was."""
        path, start = self._places[entry.content]
        descriptor = self._open.get(path)
        if descriptor is not None:
            yield from _pieces(descriptor, start, entry.size, path)
            return
        digest = hashlib.sha256()
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise gone(str(error)) from error
        try:
            for piece in _pieces(descriptor, start, entry.size, path):
                digest.update(piece)
                yield piece
        finally:
            os.close(descriptor)
        if digest.hexdigest() != entry.content:
            raise gone(f"{path} has changed since the run was submitted")

    def close(self) -> None:
        for descriptor in self._open.values():
            with suppress(OSError):
                os.close(descriptor)
        self._open.clear()


def _pieces(descriptor: int, start: int, size: int, path: Path) -> Iterator[bytes]:
    end = start + size
    while start < end:
        piece = os.pread(descriptor, min(CHUNK, end - start), start)
        if not piece:
            raise gone(f"{path} is shorter than it was")
        start += len(piece)
        yield piece
