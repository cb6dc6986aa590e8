"""A tree of files as its content describes it, and what one tree has that another lacks. Pure.

A tree is named by the digest of its manifest: the same content has the same name, whoever sends it. On a node
it is a folder `open` with what others may read, and a folder `private` with what they may not, which a job
copies under umask 077. A single file is called `file` in either.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from orch.runner.errors import RunnerError

FILE = "file"
"""The path of a tree's only entry where the task names a file."""

Kind = Literal["file", "folder", "link"]
_KINDS: dict[str, Kind] = {"f": "file", "d": "folder", "l": "link"}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One file, folder or link. `content`: a file's SHA-256 in hex, a link's target; `size` in bytes."""

    path: str
    kind: Kind
    mode: int
    private: bool = False
    size: int = 0
    content: str = ""

    @property
    def place(self) -> str:
        """Where it lies in the tree's folder on a node."""
        return f"{'private' if self.private else 'open'}/{self.path}"

    @property
    def line(self) -> str:
        return f"{_LETTERS[self.kind]} {self.mode:o} {self.size} {self.content}\0{self.place}\0"


@dataclass(frozen=True)
class Tree:
    """Entries in the order in which they can be created: a folder before what it holds."""

    entries: tuple[TreeEntry, ...]

    @cached_property
    def id(self) -> str:
        """SHA-256 of the manifest, in hex."""
        return hashlib.sha256(self.manifest).hexdigest()

    @cached_property
    def manifest(self) -> bytes:
        """Kind, mode, size, content and place of each entry; names as the file system has them."""
        return "".join(entry.line for entry in self.entries).encode("utf-8", "surrogateescape")

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(entry.size for entry in self.entries if entry.kind == "file")

    @property
    def files(self) -> int:
        return sum(entry.kind == "file" for entry in self.entries)

    def packed(self) -> bytes:
        """The manifest as it is kept."""
        return zlib.compress(self.manifest, 1)


def tree_of(entries: Iterable[TreeEntry]) -> Tree:
    return Tree(tuple(sorted(entries, key=lambda entry: entry.place.split("/"))))


def unpacked(data: bytes) -> Tree:
    """The tree of a manifest that was kept. Raises RunnerError."""
    try:
        words = zlib.decompress(data).decode("utf-8", "surrogateescape").split("\0")
        entries: list[TreeEntry] = []
        for facts, place in zip(words[:-1:2], words[1:-1:2], strict=True):
            kind, mode, size, content = facts.split(" ", 3)
            where, _, path = place.partition("/")
            entries.append(
                TreeEntry(path, _KINDS[kind], int(mode, 8), where == "private", int(size), content)
            )
    except (ValueError, KeyError, zlib.error) as error:
        raise RunnerError("a kept list of files cannot be read", detail=str(error)) from error
    return Tree(tuple(entries))


@dataclass(frozen=True)
class Delta:
    """What makes `base` on a node into a tree: places to remove, then entries to add. No base: all of it."""

    base: str | None
    drop: tuple[str, ...]
    add: tuple[TreeEntry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.add if entry.kind == "file")


def delta(tree: Tree, base: Tree | None) -> Delta:
    """The difference between two trees; a file that changed is sent whole."""
    if base is None:
        return Delta(None, (), tree.entries)
    old = {entry.place: entry for entry in base.entries}
    changed = [entry for entry in tree.entries if old.get(entry.place) != entry]
    places = {entry.place for entry in tree.entries}
    drop = [place for place in old if place not in places]
    # A folder that stays a folder keeps what it holds.
    drop += [
        entry.place
        for entry in changed
        if entry.place in old and not entry.kind == old[entry.place].kind == "folder"
    ]
    return Delta(base.id, tuple(drop), _with_parents(tree, changed))


def _with_parents(tree: Tree, changed: list[TreeEntry]) -> tuple[TreeEntry, ...]:
    """Changed entries and the folders on the way to them, whose modes the archive would else not know."""
    wanted = {entry.place for entry in changed}
    for entry in changed:
        parts = entry.place.split("/")
        wanted |= {"/".join(parts[:length]) for length in range(1, len(parts))}
    return tuple(entry for entry in tree.entries if entry.place in wanted)


def nearest(tree: Tree, candidates: Iterable[Tree]) -> Tree | None:
    """The candidate that shares the most bytes with `tree`; None when none shares half of its entries."""
    wanted = set(tree.entries)
    best: tuple[int, int] = (0, 0)
    found = None
    for each in candidates:
        shared = wanted.intersection(each.entries)
        weight = (sum(entry.size for entry in shared), len(shared))
        if weight > best:
            best, found = weight, each
    return found
