"""Whose project it is: an orch.yml, which is looked for upwards, says where state and keys go, so one that
somebody else put there must not be taken.

As git with `safe.directory`: the owner must be the caller, or root, or who called sudo; or the caller has
named the folder in ORCHCTL_TRUSTED_PROJECTS, in the environment, which no file that is found can change.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from orch.stacks.errors import ProjectError

VARIABLE = "ORCHCTL_TRUSTED_PROJECTS"
"""Folders, separated as on PATH, that are taken though somebody else owns them."""


def require_trusted(root: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ProjectError when the project at `root` is somebody else's."""
    if _is_listed((root,), environ):
        return
    for path, owner in _of_others(_owners(root), environ):
        raise ProjectError(
            f"this project belongs to somebody else: {_called(owner)}",
            where=str(path),
            detail=f"it would say where your state and keys go; you are {_called(os.geteuid())}",
            hint="make a folder of your own the project: `orch init`; or, if you trust its owner: "
            f"`export {VARIABLE}={root}`",
            code="ORCH305",
        )


def require_trusted_data(
    root: Path, folder: Path, entries: Iterable[Path], what: str, environ: Mapping[str, str] = os.environ
) -> None:
    """Raises ProjectError when a folder that the project at `root` keeps data in is somebody else's.

    Whom its owner lets write there is let: `entries`, what lies below it, counts only where everybody may
    write.
    """
    if _is_listed((root, folder), environ):
        return
    exposed = (each for each in entries if _open_to_all(each.parent))
    for path, owner in _of_others(_whose((folder, *exposed)), environ):
        raise ProjectError(
            f"the {what} of this project belongs to somebody else: {_called(owner)}",
            where=str(path),
            detail="it says which commands lead to your nodes, and they would be run here; "
            f"you are {_called(os.geteuid())}",
            hint=f"give `{what}:` in orch.yml a folder of your own; or, if you trust all who may write "
            f"there: `export {VARIABLE}={folder}`",
            code="ORCH305",
        )


def trusted_owners(caller: int, environ: Mapping[str, str]) -> frozenset[int]:
    """User numbers whose files are taken. Only root, who could be anybody, is also who called sudo."""
    sudo = environ.get("SUDO_UID", "")
    return frozenset(
        {caller, 0} | ({int(sudo)} if caller == 0 and sudo.isascii() and sudo.isdigit() else set())
    )


def open_to_all(root: Path, state: Path | None = None) -> Path | None:
    """What of a project, and of its state in files, every user of the machine may change; a sticky folder's
    entries are their owners'."""
    for folder in (root, root / ".orch", *([state] if state else [])):
        if _open_to_all(folder, sticky=False):
            return folder
    written = root / "orch.yml"
    return written if written.is_file() and written.stat().st_mode & stat.S_IWOTH else None


def _open_to_all(folder: Path, *, sticky: bool = True) -> bool:
    """Whether everybody may make files there; not `sticky`: also change those of others."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False  # not there, or not to be looked at
    return bool(mode & stat.S_IWOTH) and (sticky or not mode & stat.S_ISVTX)


def _is_listed(folders: Iterable[Path], environ: Mapping[str, str]) -> bool:
    listed = [Path(each) for each in environ.get(VARIABLE, "").split(os.pathsep) if each]
    return any(_same(each, folder) for folder in folders for each in listed)


def _of_others(found: Iterable[tuple[Path, int]], environ: Mapping[str, str]) -> Iterator[tuple[Path, int]]:
    mine = trusted_owners(os.geteuid(), environ)
    return ((path, owner) for path, owner in found if owner not in mine)


def owner_of(path: Path) -> str:
    """Who owns it, as people call them."""
    return _called(path.stat().st_uid)


def _owners(root: Path) -> Iterator[tuple[Path, int]]:
    """What makes this folder a project, links and what they lead to."""
    marks = [root / "orch.yml"] if (root / "orch.yml").exists() else [root / ".git"]
    yield from _whose((*marks, root / ".orch", root))


def _whose(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    for path in paths:
        for look in (path.lstat, path.stat):
            try:
                yield path, look().st_uid
            except OSError:
                continue  # not there, or leads nowhere


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _called(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user {owner}"
