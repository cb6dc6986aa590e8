"""Images on their way to nodes: built here, pulled there, or sent from this machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

from orch import images
from orch.images import docker as local_docker
from orch.images.build import PREFIX
from orch.runner.errors import ImageUnavailable, RunFailed, RunnerError
from orch.runner.events import ImageProgress, Notice, Processor
from orch.runner.node import container
from orch.runner.node.registry import RegistryLogin, is_refusal, pull_script, registry_of
from orch.runner.node_api.commands import NODE_HOME, Command, StdinSource, as_root
from orch.runner.node_api.connector import Completed, Connector
from orch.spec.state import NodeState
from orch.templates import render

# Images sent at once: each takes most of a core here and all of the node's disk.
STREAMS = 4
TRANSFER_S = 2 * 3600.0
# How often a stream is told: at each percent.
_TELLS = 100
STAMP = rb"\d{4}-\d\d-\d\dT[\d:.]+Z ?"
STAMPED = re.compile(STAMP)


def build_here(image: str, processor: Processor) -> None:
    """Make sure that this machine holds one of our images; an older version's cannot be made again."""
    if local_docker.has_image(image):
        return
    if images.can_build(image):
        name = image.removeprefix(PREFIX).partition(":")[0]
        try:
            images.ensure(name, progress=lambda text: processor.handle(Notice(text)))
        except images.ImageError as error:
            raise ImageUnavailable(
                error.summary,
                detail=error.detail,
                hint=error.hint,
                reason="creating_container_error",
            ) from error
        return
    raise ImageUnavailable(
        f"the image {image} is not on this machine",
        detail="images under orch/ are in no registry; they are built here and sent to the nodes",
        hint=f"images this version builds: {', '.join(f'orch/{known}' for known in images.names())}",
        reason="creating_container_error",
    )


@dataclass(frozen=True)
class _Told:
    """A stream, told as it is read: every so many bytes."""

    read: Callable[[], Iterator[bytes]]
    every: int
    told: Callable[[int], None]

    def __iter__(self) -> Iterator[bytes]:
        sent = told = 0
        for chunk in self.read():
            yield chunk
            sent += len(chunk)
            if sent - told >= self.every and sent < self.every * _TELLS:
                told = sent
                self.told(sent)
        self.told(sent)


def send_image(connector: Connector, node: NodeState, source: Source, processor: Processor) -> None:
    image, total = source.image, source.size
    began = time.monotonic()

    def send(read: Callable[[], Iterator[bytes]]) -> Completed:
        told = _Told(
            read,
            (total or 1 << 30) // _TELLS,
            lambda sent: processor.handle(ImageProgress(node.name, image, sent, total)),
        )
        processor.handle(ImageProgress(node.name, image, 0, total))
        lock = hashlib.sha256(image.encode()).hexdigest()[:16]
        command = Command(
            as_root(render("node-load.sh.j2", home=NODE_HOME, image=image, lock=lock)),
            f"load {image}",
            stdin=StdinSource(told),
            timeout_s=TRANSFER_S,
        )
        return connector.run(node, command)

    try:
        done = send(source.read)
    except NotKept:
        # A disk with room may have a quota. Read out for this node alone, nothing is kept.
        done = send(lambda: saved(image))
    if not done.ok:
        raise container.failure(done, f"node {node.name} could not load the image {image}")
    seconds = time.monotonic() - began
    processor.handle(ImageProgress(node.name, image, total or 0, total, finished=True, seconds=seconds))


def pull_image(
    connector: Connector, node: NodeState, image: str, processor: Processor, login: RegistryLogin | None
) -> None:
    began = time.monotonic()
    processor.handle(ImageProgress(node.name, image, 0, None))
    # Somebody may have brought it by other means since it was missed: the script looks again.
    command = Command(
        as_root(pull_script(image, logged_in=login is not None)),
        f"pull {image}",
        stdin=login.configuration if login is not None else None,
        timeout_s=TRANSFER_S,
    )
    done = connector.run(node, command)
    if not done.ok:
        told = container.failure(done, f"node {node.name} cannot get the image {image}")
        if type(told) is not RunFailed:
            raise told
        if is_refusal(told.detail or ""):
            registry = registry_of(image)
            raise ImageUnavailable(
                f"the registry {registry} lets nobody in"
                if login is None
                else f"the registry {registry} refuses the log-in of {login.shown}",
                where=node.name,
                detail=told.detail,
                hint="write `registry_auth` in the task"
                if login is None
                else f"are user and password of `registry_auth` right, and may they read {image}?",
                reason="creating_container_error",
            )
        raise ImageUnavailable(
            told.summary,
            where=node.name,
            detail=told.detail,
            hint="is the name right, and can the node reach that registry?",
            reason="creating_container_error",
        )
    seconds = time.monotonic() - began
    processor.handle(ImageProgress(node.name, image, 0, None, finished=True, seconds=seconds))


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
