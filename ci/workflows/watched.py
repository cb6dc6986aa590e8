"""The files whose change plans again: what fleets, volumes and orch.yml name, and all that lies beside them.

A pattern is `PATH`, `FOLDER/*` (the files of a folder), `FOLDER/**` (all below it), `*` or `**`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orch.spec.document.draft import scalars
from orch.spec.errors import ExitCode, OrchError
from orch.spec.suggest import few

if TYPE_CHECKING:
    from orch.spec.loader.load import Document

_LONGEST = 1_000
"""Characters of a text that may be a path."""


class Unwatched(OrchError):
    """Plans read files whose change starts no workflow."""

    exit_code = ExitCode.CONFIG


def patterns(root: str, folders: Iterable[str], read: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns that workflows watch: all below `folders`, the files of the project's `root`, and
    each file of `read` that is elsewhere. Paths are from the root of the repository."""
    below = sorted({*folders})
    within = ["**"] if "." in below else [f"{each}/**" for each in below if not _inside(each, below)]
    own = ["*" if root == "." else f"{root}/*"]
    found = [*within, *(each for each in own if "**" not in within and f"{root}/**" not in within)]
    return (*found, *(each for each in sorted({*read}) if not is_watched(each, found)))


def is_watched(path: str, watched: Iterable[str]) -> bool:
    """Return True if one of these patterns covers a path."""
    folder = path.rpartition("/")[0]
    own = {path, "**", f"{folder}/*" if folder else "*"}
    return any(each in own or (each.endswith("/**") and path.startswith(each[:-2])) for each in watched)


def files_read(
    top: Path, root: Path, documents: Iterable[Document], programs: Iterable[Path]
) -> Iterator[str]:
    """The files of the repository `top` that documents name, each from its own folder or from the project's
    `root`, and `programs`, a folder with all in it; each once."""
    named = {place / text for each in documents for text in _texts(each) for place in (each.directory, root)}
    run = {*programs}
    inside = {path for each in run if _is_below(each, top) and each.is_dir() for path in each.rglob("*")}
    found: set[str] = set()
    for path in (*named, *run, *inside, root / "orch.yml", root / "orch.lock"):
        try:
            real = path.expanduser().resolve()
            if real.is_file() and real.is_relative_to(top):
                found.add(real.relative_to(top).as_posix())
        except (OSError, ValueError, RuntimeError):  # no path of this system
            continue
    yield from sorted(found)


def require_watched(read: Iterable[str], watched: Iterable[str]) -> None:
    """Raise Unwatched for files that no pattern is for."""
    patterns_ = tuple(watched)
    if missing := [each for each in read if not is_watched(each, patterns_)]:
        raise Unwatched(
            "a plan reads files whose change would start no workflow",
            where=few(missing, 5),
            hint="write the workflows again, `orch ci init` with the same options, and commit them",
        )


def _is_below(path: Path, top: Path) -> bool:
    return path.resolve().is_relative_to(top)


def _inside(folder: str, folders: Iterable[str]) -> bool:
    return any(folder != each and folder.startswith(f"{each}/") for each in folders)


def _texts(document: Document) -> Iterator[str]:
    for _, scalar in scalars(document.draft.node):
        text = scalar.text
        if text and len(text) < _LONGEST and "\n" not in text and "\0" not in text:
            yield text
