"""Whose project it is: an orch.yml, which is looked for upwards, says where state and keys go, so one that
somebody else put there must not be taken.

As git with `safe.directory`: the owner must be the caller, or root, or who called sudo; or the caller has
named the folder in ORCHCTL_TRUSTED_PROJECTS, in the environment, which no file that is found can change.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from orch.stacks.errors import ProjectError

VARIABLE = "ORCHCTL_TRUSTED_PROJECTS"
"""Folders, separated as on PATH, that are taken though somebody else owns them."""


def require_trusted(root: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ProjectError when the project at `root` is somebody else's."""
    listed = environ.get(VARIABLE, "").split(os.pathsep)
    if any(each and _same(Path(each), root) for each in listed):
        return
    mine = trusted_owners(os.geteuid(), environ)
    for path, owner in _owners(root):
        if owner not in mine:
            raise ProjectError(
                f"this project belongs to somebody else: {_called(owner)}",
                where=str(path),
                detail=f"it would say where your state and keys go; you are {_called(os.geteuid())}",
                hint="make a folder of your own the project: `orch init`; or, if you trust its owner: "
                f"`export {VARIABLE}={root}`",
                code="ORCH305",
            )


def trusted_owners(caller: int, environ: Mapping[str, str]) -> frozenset[int]:
    """User numbers whose files are taken. Only root, who could be anybody, is also who called sudo."""
    sudo = environ.get("SUDO_UID", "")
    return frozenset(
        {caller, 0} | ({int(sudo)} if caller == 0 and sudo.isascii() and sudo.isdigit() else set())
    )


def open_to_all(root: Path) -> Path | None:
    """What of a project every user of the machine may change; a sticky folder's entries are their owners'."""
    folder = root.stat().st_mode
    if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        return root
    written = root / "orch.yml"
    return written if written.is_file() and written.stat().st_mode & stat.S_IWOTH else None


def owner_of(path: Path) -> str:
    """Who owns it, as people call them."""
    return _called(path.stat().st_uid)


def _owners(root: Path) -> Iterator[tuple[Path, int]]:
    """What makes this folder a project, links and what they lead to."""
    marks = [root / "orch.yml"] if (root / "orch.yml").exists() else [root / ".git"]
    for path in (*marks, root / ".orch", root):
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
