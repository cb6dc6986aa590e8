"""Where documents of strangers may look: their repository, with links resolved without a look outside."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from orch.spec.grammar.characters import JOINERS

MAX_LINKS = 40
# What a checkout holds beside its files: tokens of the checkout, state and keys of orch.
HIDDEN = frozenset({".git", ".orch"})


@dataclass(frozen=True)
class Fence:
    """Limit on the files that untrusted documents may name: the folder `root` only. `allowed`: names that
    documents may use although they lead out; see `--allow`."""

    root: Path
    allowed: frozenset[str] = frozenset()

    def holds(self, path: Path | str) -> bool:
        """Return True if a path, absolute or relative to the current folder, is a file of the repository."""
        roots = (str(self.root), os.path.realpath(self.root))
        rest = _below(roots, _absolute(str(path)))
        links = 0
        inside: list[str] = []
        while rest is not None and rest:
            part, rest = rest[0], rest[1:]
            if part in ("", "."):
                continue
            if part == "..":
                if not inside:
                    return False
                inside.pop()
                continue
            if _is_hidden(part):
                return False
            target = link_target(os.path.join(self.root, *inside, part))
            if target is None:
                inside.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                return False
            if os.path.isabs(target):
                below = _below(roots, target)
                inside, rest = [], None if below is None else [*below, *rest]
            else:
                rest = [*target.split("/"), *rest]
        return rest is not None


def _is_hidden(part: str) -> bool:
    """Return True if a name may lead to a hidden folder, on any file system.

    macOS and Windows do not tell upper from lower case, HFS+ skips joiners, NTFS skips dots and spaces at the
    end and has short names. As git's `protectHFS` and `protectNTFS`.
    """
    name = part.translate(dict.fromkeys(map(ord, JOINERS))).rstrip(" .").lower()
    return name in HIDDEN or re.fullmatch(r"(git|orch)~[0-9]+", name) is not None


def fence_around(path: str, allowed: frozenset[str]) -> Fence:
    """The repository that a file, a folder or standard input (`-`) belongs to: its Git checkout, else the
    folder.

    Links that lead to a checkout are the caller's. Those inside one, or below the working directory where
    there is none, are a stranger's: the checkout that holds the link is the repository, wherever it leads.
    """
    here = Path.cwd()
    start = here if path == "-" else Path(os.path.abspath(path))
    checkout = None
    for each in (*reversed(start.parents), start):
        if checkout is not None and each.is_symlink():
            break
        if os.path.lexists(each / ".git"):
            checkout = each
    if checkout is not None:
        return Fence(checkout, allowed)
    below = [each for each in (*reversed(start.parents), start) if here in each.parents]
    link = next((each for each in below if each.is_symlink()), None)
    if link is not None:
        return Fence(link.parent, allowed)
    return Fence(start if start.is_dir() else start.parent, allowed)


def _absolute(path: str) -> str:
    """A path from the root. The working directory has no links, so `..` before a name are taken off it."""
    if os.path.isabs(path):
        return path
    here, parts = os.getcwd(), path.split("/")
    while parts and parts[0] in ("", ".", ".."):
        here = os.path.dirname(here) if parts.pop(0) == ".." else here
    return os.path.join(here, *parts)


def _below(roots: tuple[str, ...], path: str) -> list[str] | None:
    """The parts of a path below the first of some roots that it begins with; None for one outside."""
    for root in roots:
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return path[len(root.rstrip("/")) :].split("/")
    return None


def link_target(path: str) -> str | None:
    try:
        return os.readlink(path) if stat.S_ISLNK(os.lstat(path).st_mode) else None
    except (OSError, ValueError):
        return None
