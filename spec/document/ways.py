"""The folders upwards from a file, by each way that leads to it: by its name, and by where it really is."""

from __future__ import annotations

import os


def ways_up(path: str) -> tuple[tuple[str, ...], ...]:
    """The folders from a file or folder (`-`: here) up to the root of the file system, the nearest first: by
    the name that is written, and without links. The way that counts more comes first.

    A name counts as it is written, so that what a link in a project leads to belongs to it. A name with `..`
    counts by where it leads. The working directory has no links; how a shell came there (PWD) comes last.
    """
    here = os.getcwd()
    start = here if path == "-" else os.path.join(here, os.path.expanduser(path))
    folder = start if os.path.isdir(start) else os.path.dirname(start)
    ways = [folder, _real(folder)]
    if ".." in folder.split("/"):
        ways.reverse()
    else:
        ways[0] = os.path.normpath(folder)
    return tuple(dict.fromkeys(_upwards(each) for each in (*ways, _as_entered(ways[0], here))))


def _real(folder: str) -> str:
    try:
        return os.path.realpath(folder)
    except (OSError, ValueError):  # a name that no folder can have
        return folder


def _as_entered(folder: str, here: str) -> str:
    """A folder below the working directory, by the links through which a shell came there."""
    entered = os.environ.get("PWD", "")
    below = f"{here.rstrip('/')}/"
    if not os.path.isabs(entered) or not f"{folder}/".startswith(below) or not _is_same(entered, here):
        return folder
    return os.path.normpath(os.path.join(entered, folder[len(below) :]))


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _upwards(folder: str) -> tuple[str, ...]:
    found = [folder]
    while (above := os.path.dirname(folder)) != folder:
        folder = above
        found.append(folder)
    return tuple(found)
