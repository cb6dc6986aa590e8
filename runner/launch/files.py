"""Where the paths of `files` are on this machine, and where they go in the container."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask, about_property
from orch.runner.plan.run_plan import StagedFile

if TYPE_CHECKING:
    from orch.spec.models.mounts import FileMount


ALWAYS_WHY = {
    ".orch": "keys, states and the variables of runs are kept there",
    ".git": "its settings may hold credentials, and its history what was removed",
}
ALWAYS = frozenset(ALWAYS_WHY)
"""Never packed, whatever an ignore file says: keys, states, runs' variables; history and credentials."""

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class RepoName:
    """A repository's REPO_ID, and its folder or URL without credentials."""

    id: str
    label: str


@dataclass(frozen=True)
class Source:
    """A path of this machine: all of it, or of a folder what `pattern` matches, as in an ignore file."""

    path: Path
    pattern: str | None = None


def resolve_source(base: Path, path_text: str) -> Source:
    """What a path in `files` names: the real path, with links followed, or a folder and a pattern.

    A path that exists is no pattern, whatever characters it has. Raises BadTask for a link that leads out of
    the task's own folder, and for a path in `.orch` or `.git`.
    """
    task_folder = Path(os.path.realpath(base))
    path = Path(os.path.normpath(task_folder / Path(path_text).expanduser()))
    pattern = None
    if _GLOB.search(path_text) and not os.path.lexists(path):
        parts = path.parts
        first = next((at for at, part in enumerate(parts) if _GLOB.search(part)), len(parts))
        path, pattern = Path(*parts[:first]), "/".join(parts[first:])
    real = Path(os.path.realpath(path))
    if path.is_relative_to(task_folder) and not real.is_relative_to(task_folder):
        raise BadTask(
            f"{path_text} is a symbolic link that leads out of the task's folder",
            detail=f"it leads to {real}",
            hint=f"to pack that, name it: `{real}:{path_text}`",
        )
    names = {part.lower() for part in (*path.parts, *real.parts)}
    for excluded in sorted(ALWAYS & names):
        raise BadTask(
            f"{path_text} lies in `{excluded}` and is never packed",
            detail=ALWAYS_WHY[excluded],
            hint="copy what you need to another folder first",
        )
    return Source(real, pattern or None)


def target_of(local_path: str, path: str, pattern: str | None) -> str:
    """Where an entry of `files` goes in the container; without a `path` of its own, where it lies here."""
    if path and path != local_path:
        return path
    if pattern is None:
        return path or Path(local_path).name
    return local_path.removesuffix(pattern).rstrip("/") or "."


def staged_files(base: Path, items: Sequence[FileMount]) -> Iterator[StagedFile]:
    for index, item in enumerate(items):
        with about_property(f"files.{index}"):
            source = resolve_source(base, item.local_path)
        target = target_of(item.local_path, item.path, source.pattern)
        yield StagedFile(source=str(source.path), target=target, pattern=source.pattern)
