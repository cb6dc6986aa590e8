"""Copies of files and folders between this machine and ranks of runs, or nodes: what `orch cp` does."""

from __future__ import annotations

import posixpath
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orch.runner.errors import RunnerError
from orch.runner.node.container import COPY_S, NO_PATH, failure
from orch.runner.node.runtime import JobRuntime
from orch.runner.node_api.commands import Command, StdinSource
from orch.runner.node_api.connector import Connector
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs.context import RunContext
from orch.runner.runs.outputs import keeper, output_target
from orch.runner.upload.archive import Unpacking, pieces, place
from orch.spec.errors import ExitCode
from orch.spec.state import NodeState

_PLACE = re.compile(r"(?P<name>[^/:.~][^/:]*)(?:/(?P<rank>[0-9]{1,6}))?:(?P<path>.*)", re.DOTALL)


class PathMissing(RunnerError):
    """There is no such file or folder on the other side."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Place:
    """`NAME:PATH` of a run or a node, or `RUN/RANK:PATH`."""

    name: str
    path: str
    rank: int | None = None


def parse_place(text: str) -> Place | None:
    """The other side that a word of the command line names; None for a path of this machine."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    rank = found["rank"]
    return Place(found["name"], found["path"] or ".", None if rank is None else int(rank))


_READABLE = "can the login read it? `orch ssh NODE` looks at it"
_WRITABLE = "name a folder that is there and that the login may write to"


@dataclass(frozen=True)
class Copied:
    """What was copied: bytes of files, their number, and where they are now."""

    size: int
    files: int
    target: str


Tell = Callable[[int], None]


@dataclass(frozen=True)
class RankSide:
    """A path in the container of one rank that runs, or has not been removed."""

    connector: Connector
    runtime: JobRuntime
    plan: RunPlan
    rank: int

    def read(self, path: str, on_data: Callable[[bytes], None]) -> bool:
        return self.runtime.read_path(self.connector, self.plan, self.rank, path, on_data)

    def is_folder(self, path: str) -> bool:
        return self.runtime.is_folder(self.connector, self.plan, self.rank, path)

    def write(self, folder: str, archive: Iterator[bytes]) -> None:
        self.runtime.write_path(self.connector, self.plan, self.rank, folder, archive)

    @property
    def label(self) -> str:
        return f"rank {self.rank} of run {self.plan.run}"


@dataclass(frozen=True)
class NodeSide:
    """A path of a node, as the user sees it who logs in; a relative one starts at that user's home."""

    connector: Connector
    node: NodeState

    def read(self, path: str, on_data: Callable[[bytes], None]) -> bool:
        quoted = shlex.quote(path)
        text = f"""[ -e {quoted} ] || [ -L {quoted} ] || exit {NO_PATH}
case {quoted} in /) exec tar -cf - -C / .;; .|./) exec tar -cf - -C .. -- "$(basename "$PWD")";; esac
tar -cf - -C "$(dirname -- {quoted})" -- "$(basename -- {quoted})" """
        done = self.connector.run(self.node, Command(text, f"read {path}", timeout_s=COPY_S), on_data=on_data)
        if done.exit_code == NO_PATH:
            return False
        if not done.ok:
            raise failure(done, f"{path} of node {self.node.name} cannot be read", _READABLE)
        return True

    def is_folder(self, path: str) -> bool:
        return self.connector.run(self.node, Command(f"[ -d {shlex.quote(path)} ]")).ok

    def write(self, folder: str, archive: Iterator[bytes]) -> None:
        quoted = shlex.quote(folder)
        text = f"mkdir -p -- {quoted} && tar -xf - -C {quoted}"
        command = Command(text, f"write {folder}", StdinSource(archive), COPY_S)
        done = self.connector.run(self.node, command)
        if not done.ok:
            raise failure(done, f"{folder} of node {self.node.name} cannot be written", _WRITABLE)

    @property
    def label(self) -> str:
        return f"node {self.node.name}"


Side = RankSide | NodeSide


def fetch(side: Side, path: str, target: Path, tell: Tell) -> Copied:
    """Copy a file or folder of the other side to `target`: into it where that is a folder, else as that name.

    What is at `target` is replaced file by file, once all has come. Raises PathMissing, RunnerError.
    """
    into = target.is_dir()
    parent = target if into else target.parent
    staged = parent / f".orch-cp-{secrets.token_hex(6)}"
    try:
        unpacking = Unpacking(staged)

        def take(data: bytes) -> None:
            unpacking.write(data)
            tell(unpacking.received.size)

        try:
            found = side.read(path, take)
            entry = unpacking.finish() if found else None
        finally:
            unpacking.close()
        if entry is None:
            raise PathMissing(f"there is no {path} on {side.label}")
        final = target / entry.name if into else target
        place(entry, final)
    except OSError as error:
        raise _not_written(error, target) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Copied(unpacking.received.size, unpacking.received.files, str(final))


def push(side: Side, source: Path, path: str, tell: Tell) -> Copied:
    """Copy a file or folder of this machine to the other side: into `path` where that is a folder or ends in
    `/`, else as that name. Raises RunnerError."""
    whole = path.endswith("/") or side.is_folder(path)
    name = Path(source).resolve().name if whole else path.rpartition("/")[2]
    folder = path if whole else path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    size = files = 0

    def archive() -> Iterator[bytes]:
        nonlocal size
        for piece in pieces(source, name):
            yield piece
            size += len(piece)
            tell(size)

    try:
        held = [each for each in (source, *source.rglob("*")) if each.is_file() and not each.is_symlink()]
        size_of_files, files = sum(each.stat().st_size for each in held), len(held)
        side.write(folder, archive())
    except OSError as error:
        raise RunnerError(
            f"{error.filename or source} cannot be read",
            detail=error.strerror or str(error),
            hint="make it readable, or leave it out",
        ) from error
    return Copied(size_of_files, files, f"{folder.rstrip('/')}/{name}")


@dataclass(frozen=True)
class Kept:
    """What `outputs` kept of a path: where it lies here, and what it is called in the container."""

    place: Path
    name: str


def collected(context: RunContext, plan: RunPlan, rank: int, path: str) -> Kept:
    """Where `outputs` kept a path of a rank that has ended. Raises PathMissing."""
    path = posixpath.normpath(path)
    outputs = [
        each for each in plan.outputs if path == each.path or path.startswith(f"{each.path.rstrip('/')}/")
    ]
    for output in outputs:
        target = output_target(context.folder, plan, rank, output)
        if output.to is not None and (target / Path(output.path).name).is_file():
            target /= Path(output.path).name
        kept = target / path[len(output.path) :].lstrip("/")
        if kept.exists():
            return Kept(kept, posixpath.basename(path) or kept.name)
    keeps = keeper(context.ledger, context.folder.number, context.folder.attempt) if outputs else None
    if keeps is not None:
        raise PathMissing(
            f"the outputs of run {plan.run} are not on this machine",
            detail=f"{keeps} drove it to its end and keeps them",
            hint="ask there, or let a volume or a file system hold what all need",
        )
    if outputs:
        raise PathMissing(
            f"there is no {path} in what was collected of rank {rank}",
            detail=f"run {plan.run} has ended; {outputs[0].path} was collected, as far as it was there",
            hint=f"`orch show {context.ledger.argument(context.folder.number)}` tells what was left out",
        )
    kept_paths = ", ".join(output.path for output in plan.outputs)
    raise PathMissing(
        f"{path} of rank {rank} was not collected: run {plan.run} has ended",
        detail=f"its `outputs` are {kept_paths}" if kept_paths else "it has no `outputs`",
        hint="name what is to be kept of a job in `outputs`",
    )


def copy_here(kept: Kept, target: Path) -> Copied:
    """Copy what was collected, under the name that it had in the container. Raises RunnerError."""
    source, final = kept.place, target / kept.name if target.is_dir() else target
    try:
        if source.is_dir():
            shutil.copytree(source, final, symlinks=True, dirs_exist_ok=True)
        else:
            final.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, final)
    except OSError as error:
        raise _not_written(error, final) from error
    files = [each for each in (final, *final.rglob("*")) if each.is_file() and not each.is_symlink()]
    return Copied(sum(each.stat().st_size for each in files), len(files), str(final))


def _not_written(error: OSError, target: Path) -> RunnerError:
    return RunnerError(
        f"{target} cannot be written on this machine",
        detail=error.strerror or str(error),
        hint="name a folder that you may write to",
    )
