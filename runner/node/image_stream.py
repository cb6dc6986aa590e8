"""An image of this machine as a stream of bytes for nodes: read out once for all, where that can be."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

from orch.images import docker as local_docker
from orch.runner.errors import ImageUnavailable, RunnerError

_CHUNK = 1 << 18


def saved(image: str) -> Generator[bytes]:
    """`docker save` of an image. Raises ImageUnavailable."""
    with subprocess.Popen(
        ["docker", "save", "--", image],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            while process.stdout is not None and (chunk := process.stdout.read(_CHUNK)):
                yield chunk
        except BaseException:  # the reader went away: nobody wants the rest
            process.kill()
            raise
        errors = process.stderr.read() if process.stderr is not None else b""
    if process.returncode:
        raise ImageUnavailable(
            f"this machine cannot read out the image {image}",
            detail=errors.decode(errors="replace").strip()
            or f"`docker save` ended with {process.returncode}",
            hint="`docker image inspect` it, and build it anew where it is damaged",
            reason="creating_container_error",
        )


class NotKept(RunnerError):
    """What is sent to several nodes could not be kept on this machine's disk, which had room for it."""


class SharedStream:
    """A stream that is read once, and given from its beginning to each who reads it.

    What was read lies meanwhile in `file`, which is not buffered, so that nobody waits for who is slower. An
    error of the stream, or of the disk in folder `where`, is raised to all of them.
    """

    def __init__(self, stream: Generator[bytes], file: IO[bytes], where: Path) -> None:
        self._stream, self._file, self._where = stream, file, where
        self._changed = threading.Condition()
        self._size = 0
        self._over = False
        self._error: BaseException | None = None
        threading.Thread(target=self._read, name="orch-stream", daemon=True).start()

    def close(self) -> None:
        """Read no more of it, and forget what was read."""
        with self._changed:
            self._over = True
            self._file.close()
            self._changed.notify_all()

    def read(self) -> Iterator[bytes]:
        """All of it, as it comes. Raises OSError when it is closed meanwhile."""
        at = 0
        while True:
            with self._changed:
                while not (self._over or self._size > at):
                    self._changed.wait()
                if self._file.closed:
                    raise OSError("what is sent was closed")
                if self._size > at:
                    chunk = os.pread(self._file.fileno(), _CHUNK, at)
                elif self._error is not None:
                    raise self._error
                else:
                    return
            at += len(chunk)
            yield chunk

    def _read(self) -> None:
        try:
            with closing(self._stream) as stream:
                for chunk in stream:
                    with self._changed:
                        if self._over:
                            return
                        self._size += self._keep(chunk)
                        self._changed.notify_all()
        except OSError as error:
            self._error = NotKept(
                "this machine cannot keep what it sends to the nodes",
                where=str(self._where),
                detail=str(error),
                hint="make room where caches lie (XDG_CACHE_HOME)",
            )
        except BaseException as error:  # noqa: BLE001 - raised to who reads
            self._error = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _keep(self, chunk: bytes) -> int:
        left = memoryview(chunk)
        while left:
            left = left[os.write(self._file.fileno(), left) :]
        return len(chunk)


@dataclass(frozen=True)
class Source:
    """An image of this machine, its bytes where they are known, and what reads it out for one node."""

    image: str
    size: int | None
    read: Callable[[], Iterator[bytes]]


@contextmanager
def reading(image: str, nodes: int) -> Iterator[Source]:
    """An image for some nodes, read out once for all of them, where this machine's disk has room for what
    Docker keeps of it meanwhile and for as much again."""
    told = local_docker.ask("image", "inspect", "--format", "{{.Size}}", image)
    size = int(told) if told and told.isdigit() else None
    with ExitStack() as opened:
        shared = opened.enter_context(_shared(image, size)) if nodes > 1 and size is not None else None
        yield Source(image, size, shared.read if shared else lambda: saved(image))


@contextmanager
def _shared(image: str, size: int) -> Iterator[SharedStream | None]:
    """None where it cannot be kept here: there is no room, or caches cannot be written."""
    with ExitStack() as opened:
        try:
            folder = user_cache_path("orch", ensure_exists=True)
            room = shutil.disk_usage(folder).free >= 2 * size
            file = opened.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0)) if room else None
        except OSError:
            folder = file = None
        if folder is None or file is None:
            yield None
        else:
            yield opened.enter_context(closing(SharedStream(saved(image), file, folder)))
