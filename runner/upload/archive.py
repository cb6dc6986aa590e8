"""Tar archives between this machine and a node: made while they are sent, unpacked while they come.

What a node sends may be anything: it is unpacked below one new folder, without owners, devices, set-user
bits, and without links that lead out of it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orch.runner.errors import RunnerError

PIECE = 1 << 18
_BLOCK = 512


def header(name: str, kind: bytes, mode: int, *, size: int = 0, link: str = "", mtime: float = 0.0) -> bytes:
    """The header of one entry, root's; a name may be any that a file system has."""
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size, member.linkname = kind, mode, size, link
    member.mtime = int(mtime)
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """What follows the content of a file of `size` bytes."""
    return b"\0" * (-size % _BLOCK)


END = b"\0" * _BLOCK * 2


def pieces(path: Path, name: str) -> Iterator[bytes]:
    """A file or folder of this machine as a tar archive whose first entry is called `name`.

    Pipes, sockets and devices are left out. Raises OSError, RunnerError for a file that changes meanwhile.
    """
    yield from _pieces(path, name)
    yield END


def _pieces(path: Path, name: str) -> Iterator[bytes]:
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISLNK(found.st_mode):
        yield header(name, tarfile.SYMTYPE, 0o777, link=os.readlink(path), mtime=found.st_mtime)
    elif stat.S_ISDIR(found.st_mode):
        yield header(name, tarfile.DIRTYPE, mode, mtime=found.st_mtime)
        for each in sorted(os.listdir(path)):
            yield from _pieces(path / each, f"{name}/{each}")
    elif stat.S_ISREG(found.st_mode):
        yield header(name, tarfile.REGTYPE, mode, size=found.st_size, mtime=found.st_mtime)
        left = found.st_size
        with path.open("rb") as stream:
            while left and (piece := stream.read(min(PIECE, left))):
                left -= len(piece)
                yield piece
        if left:
            raise RunnerError(f"{path} became shorter while it was sent", hint="send it again")
        yield padding(found.st_size)


@dataclass
class Received:
    """What came: bytes of files, their number; and what was left out, links that lead out and special files
    (pipes, devices)."""

    size: int = 0
    files: int = 0
    left_out: int = 0
    special: int = 0


class Unpacking:
    """Unpacks a tar archive into the new folder `folder` while its bytes come by `write`."""

    def __init__(self, folder: Path) -> None:
        self.received = Received()
        self._folder = folder
        self._error: BaseException | None = None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        reader, writer = os.pipe()
        self._writer = os.fdopen(writer, "wb")
        self._thread = threading.Thread(target=self._unpack, args=(reader,), name="orch-unpack", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """More of the archive. Raises what unpacking it raised."""
        try:
            self._writer.write(data)
        except OSError as error:
            self._thread.join()
            raise self._error or error from error

    def finish(self) -> Path | None:
        """The one entry of the archive, once all of it came; None for an archive without one.

        Raises OSError when this machine cannot keep it, RunnerError for what is no such archive.
        """
        self.close()
        if self._error is not None:
            if isinstance(self._error, tarfile.TarError):
                raise RunnerError("what the node sent is not whole", detail=str(self._error)) from self._error
            raise self._error
        entries = list(self._folder.iterdir())
        if len(entries) > 1:
            raise RunnerError("what the node sent is more than was asked for")
        return entries[0] if entries else None

    def close(self) -> None:
        with suppress(OSError):  # the thread has ended, and its error says why
            self._writer.close()
        self._thread.join()

    def _unpack(self, reader: int) -> None:
        try:
            with os.fdopen(reader, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    self._take(archive, member)
                # Docker fills the last block up; a pipe that nobody reads would stop it.
                while stream.read(PIECE):
                    pass
        except BaseException as error:  # noqa: BLE001 - raised to who writes and to who waits for the end
            self._error = error

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = self._inside(member.name)
        if path is None:
            self.received.left_out += 1
        elif member.isdir():
            # A folder that its owner may not write would take no files.
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif member.issym():
            if self._inside(str(path.parent.relative_to(self._folder) / member.linkname)) is None:
                self.received.left_out += 1
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(member.linkname)
        elif member.islnk():
            source = self._inside(member.linkname)
            if source is not None and source.is_file():
                os.link(source, path, follow_symlinks=False)
        elif member.isreg():
            self._write_file(archive, member, path)
        else:
            self.received.special += 1

    def _write_file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:
            while content is not None and (piece := content.read(PIECE)):
                stream.write(piece)
                self.received.size += len(piece)
            os.fchmod(stream.fileno(), member.mode & 0o777 | 0o400)
        os.utime(path, (member.mtime, member.mtime))
        self.received.files += 1

    def _inside(self, name: str) -> Path | None:
        """Where an entry goes; None for one that leads out of the folder, by its name or through a link."""
        path = Path(os.path.normpath(self._folder / name))
        top = os.path.realpath(self._folder)
        parent = os.path.realpath(path.parent)
        if os.path.isabs(name) or path == self._folder or not (parent == top or parent.startswith(f"{top}/")):
            return None
        return path if path.is_relative_to(self._folder) else None


def place(entry: Path, target: Path) -> None:
    """Move what was unpacked to `target`, over what is there: files are replaced, folders are joined."""
    if entry.is_dir() and not entry.is_symlink():
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise NotADirectoryError(20, "Not a directory", str(target))
        target.mkdir(parents=True, exist_ok=True)
        for each in sorted(entry.iterdir()):
            place(each, target / each.name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(entry, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # The target is on another file system: there is never a part of it either.
        beside = target.with_name(f".{target.name}.partial")
        shutil.move(entry, beside)
        os.replace(beside, target)
