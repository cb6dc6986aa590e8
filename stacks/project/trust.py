"""Trust in a project's owner: an orch.yml, found upwards, decides where state and keys go, so orch refuses
one of another user.

The rule is git's `safe.directory`: the owner must be the caller, root, or the user who called sudo; or the
caller lists the folder in ORCHCTL_TRUSTED_PROJECTS, an environment variable, which no file can change.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from orch.stacks.errors import ProjectError

VARIABLE = "ORCHCTL_TRUSTED_PROJECTS"
"""Folders, separated as on PATH, that the caller trusts although another user owns them."""


def require_trusted(root: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ProjectError when another user owns the project at `root`."""
    if _is_listed((root,), environ):
        return
    for path, owner in _of_other_users(_project_owners(root), environ):
        raise ProjectError(
            f"this project belongs to somebody else: {_user_name(owner)}",
            where=str(path),
            detail=f"it would say where your state and keys go; you are {_user_name(os.geteuid())}",
            hint="make a folder of your own the project: `orch init`; or, if you trust its owner: "
            f"`export {VARIABLE}={root}`",
            code="ORCH305",
        )


def require_trusted_data(
    root: Path, folder: Path, entries: Iterable[Path], what: str, environ: Mapping[str, str] = os.environ
) -> None:
    """Raises ProjectError when another user owns a data folder of the project at `root`.

    Users to whom the folder's owner gives write access are trusted: `entries` below it are only checked where
    every user may write. `what` names the data: `state`, `ledger`.
    """
    if _is_listed((root, folder), environ):
        return
    exposed = (entry for entry in entries if _open_to_all(entry.parent))
    for path, owner in _of_other_users(_owners_of((folder, *exposed)), environ):
        raise ProjectError(
            f"the {what} of this project belongs to somebody else: {_user_name(owner)}",
            where=str(path),
            detail="it says which commands lead to your nodes, and they would be run here; "
            f"you are {_user_name(os.geteuid())}",
            hint=f"give `{what}:` in orch.yml a folder of your own; or, if you trust all who may write "
            f"there: `export {VARIABLE}={folder}`",
            code="ORCH305",
        )


def trusted_owners(caller: int, environ: Mapping[str, str]) -> frozenset[int]:
    """User numbers whose files are trusted. SUDO_UID counts only for root, who could be anybody anyway."""
    sudo = environ.get("SUDO_UID", "")
    return frozenset(
        {caller, 0} | ({int(sudo)} if caller == 0 and sudo.isascii() and sudo.isdigit() else set())
    )


def open_to_all(root: Path, state: Path | None = None) -> Path | None:
    """The first path of a project, and of its state in files, that every user of the machine may change; None
    for none. Entries of a sticky folder belong to their owners."""
    for folder in (root, root / ".orch", *([state] if state else [])):
        if _open_to_all(folder, sticky=False):
            return folder
    settings = root / "orch.yml"
    return settings if settings.is_file() and settings.stat().st_mode & stat.S_IWOTH else None


def _open_to_all(folder: Path, *, sticky: bool = True) -> bool:
    """Return True if every user may create files in a folder; if not `sticky`: also change those of
    others."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False  # missing, or not accessible
    return bool(mode & stat.S_IWOTH) and (sticky or not mode & stat.S_ISVTX)


def _is_listed(folders: Iterable[Path], environ: Mapping[str, str]) -> bool:
    listed = [Path(each) for each in environ.get(VARIABLE, "").split(os.pathsep) if each]
    return any(_same_file(each, folder) for folder in folders for each in listed)


def _of_other_users(
    owners: Iterable[tuple[Path, int]], environ: Mapping[str, str]
) -> Iterator[tuple[Path, int]]:
    trusted = trusted_owners(os.geteuid(), environ)
    return ((path, owner) for path, owner in owners if owner not in trusted)


def owner_of(path: Path) -> str:
    """The name of the user who owns a path."""
    return _user_name(path.stat().st_uid)


def _project_owners(root: Path) -> Iterator[tuple[Path, int]]:
    """The paths that make a folder a project, with their owners: of links and of their targets."""
    marks = [root / "orch.yml"] if (root / "orch.yml").exists() else [root / ".git"]
    yield from _owners_of((*marks, root / ".orch", root))


def _owners_of(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    for path in paths:
        for stat_of in (path.lstat, path.stat):
            try:
                yield path, stat_of().st_uid
            except OSError:
                continue  # missing, or a dangling link


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _user_name(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user {owner}"
