"""What runs take along, kept on this machine as it was when they were submitted: `.orch/uploads/`.

Files are read once per change: their digests are remembered with size, times and inode, as in git's index.
Contents lie one after the other in packs, each once; a file larger than LARGE is not copied, and is read from
where it lies when it is sent. Contents that no run has used for a while go when packs exceed KEPT bytes.
`keep_files` is what `submit` does before a run is written down.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask, about_property
from orch.runner.launch.files import Source, resolve_source
from orch.runner.plan.run_plan import RunPlan
from orch.runner.private import private_file, private_folder
from orch.runner.upload.packs import LARGE, ContentReader, PackWriter, gone, stamp_of, unusable
from orch.runner.upload.repository import Repository, check_repository
from orch.runner.upload.selection import SelectedEntry, Selection, messages, select_entries, sent_mode
from orch.runner.upload.tree import Tree, TreeEntry, tree_of, unpacked

if TYPE_CHECKING:
    from orch.spec.models import Task

KEPT = 2 << 30
# A run may wait this long for its nodes.
UNUSED_S = 86_400.0
FORGOTTEN_S = 30 * 86_400.0
# A file that changed in the last moment may change again within one tick of its file system's clock.
SETTLED_NS = 2_000_000_000

_SCHEMA = """
create table if not exists seen(
  path blob primary key, size integer, mtime integer, ctime integer, inode integer, content text,
  secret integer, used_at real);
create table if not exists kept(content text primary key, pack text, start integer);
create table if not exists pack(name text primary key, size integer, used_at real);
create table if not exists tree(id text primary key, manifest blob, used_at real);
create index if not exists kept_pack on kept(pack);
"""


def check_sources(base: Path, task: Task) -> None:
    """Raises BadTask that names every path of `files` missing on this machine, or for a repository that is
    not there, or refuses the caller."""
    paths: list[Path] = []
    for index, item in enumerate(task.files):
        with about_property(f"files.{index}"):
            paths.append(resolve_source(base, item.local_path).path)
    _check(paths)
    for repo in task.repos:
        with about_property("repos.0"):
            check_repository(base, repo)


def _check(paths: Sequence[Path]) -> None:
    """Raises BadTask for paths of `files`, in their order, that are not there."""
    missing = [index for index, path in enumerate(paths) if not os.path.lexists(path)]
    if missing:
        names = ", ".join(str(paths[index]) for index in missing)
        raise BadTask(
            f"{names} {'is' if len(missing) == 1 else 'are'} not here",
            hint="`files` are looked for beside the file that names them",
            path=f"files.{missing[0]}",
        )


def keep_files(dot: Path, plan: RunPlan, repo: Repository | None = None) -> tuple[RunPlan, tuple[str, ...]]:
    """Keep what a run takes along: its plan with the trees, and `LEVEL: TEXT` lines for the user.

    Raises BadTask for what cannot be sent, LedgerUnusable when `.orch` cannot be written.
    """
    if not plan.files:
        return plan, ()
    _check([Path(item.source) for item in plan.files if item.if_exists is None])
    snapshots = Snapshots(dot)
    selections: list[Selection] = []
    key_files: list[str] = []
    files = []
    repositories = sum(1 for item in plan.files if item.if_exists is not None)
    for index, item in enumerate(plan.files):
        # The repository comes first, then `files` in their order.
        path = "repos.0" if item.if_exists is not None else f"files.{index - repositories}"
        with about_property(path):
            if item.if_exists is not None and repo is not None:
                selection = repo.selection
            else:
                selection = select_entries(Source(Path(item.source), item.pattern))
            kept = snapshots.keep(selection.entries)
        selections.append(selection)
        key_files += kept.key_files
        folder = any(stat.S_ISDIR(entry.status.st_mode) for entry in selection.entries)
        files.append(item.model_copy(update={"tree": kept.tree.id, "folder": folder}))
    notes = repo.notes if repo else ()
    return plan.model_copy(update={"files": tuple(files)}), (*messages(selections, key_files), *notes)


@dataclass(frozen=True)
class Kept:
    """A tree that was kept, and its files that hold what looks like a key."""

    tree: Tree
    key_files: tuple[str, ...]


class Snapshots:
    """The contents of a project's runs. Processes may share the folder."""

    def __init__(self, dot: Path) -> None:
        self._folder = dot / "uploads"

    def keep(self, entries: Sequence[SelectedEntry]) -> Kept:
        """Keep the contents of `entries` and return their tree.

        A large file is read from its place when it is sent, except one of a repository that is fetched into
        this folder: the next fetch may repack it.

        Raises BadTask for a file that cannot be read or that changes meanwhile, LedgerUnusable when the
        folder cannot be written.
        """
        try:
            with self._open() as db, closing(PackWriter(self._folder, db)) as writer:
                kept = self._keep(db, writer, entries)
                writer.finish()
                db.execute(
                    "insert or replace into tree values(?, ?, ?)",
                    (kept.tree.id, kept.tree.packed(), time.time()),
                )
                self._forget(db, kept.tree)
        except (OSError, sqlite3.Error) as error:
            raise unusable(self._folder, error) from error
        return kept

    def use(self, tree_ids: Iterable[str]) -> None:
        """Keep what trees hold as if they were kept now: a run will send them again.

        What of them is forgotten stays so. Raises LedgerUnusable when the folder cannot be written.
        """
        now = time.time()
        try:
            with self._open() as db:
                for tree_id, manifest in list(_among(db, "select id, manifest from tree where id", tree_ids)):
                    contents = {entry.content for entry in unpacked(manifest).entries if entry.content}
                    packs = set(_among(db, "select pack from kept where content", contents))
                    db.execute("update tree set used_at = ? where id = ?", (now, tree_id))
                    db.executemany(
                        "update pack set used_at = ? where name = ?", [(now, *each) for each in packs]
                    )
                    db.executemany(
                        "update seen set used_at = ? where content = ?", [(now, each) for each in contents]
                    )
        except (OSError, sqlite3.Error) as error:
            raise unusable(self._folder, error) from error

    def tree(self, tree_id: str) -> Tree | None:
        """A tree that was kept; None for one that is forgotten."""
        with self._open() as db:
            row = db.execute("select manifest from tree where id = ?", (tree_id,)).fetchone()
        return unpacked(row[0]) if row else None

    def reader(self, entries: Iterable[TreeEntry]) -> ContentReader:
        """What reads the contents of some files.

        Raises RunFailed when one of them is no longer kept.
        """
        wanted = {entry.content for entry in entries if entry.kind == "file"}
        places: dict[str, tuple[Path, int]] = {}
        with self._open() as db:
            for content, pack, start in _among(
                db, "select content, pack, start from kept where content", wanted
            ):
                places[content] = (self._folder / pack, start)
            rest = wanted - places.keys()
            for content, path in _among(db, "select content, path from seen where content", rest):
                if os.path.exists(path):
                    places[content] = (Path(os.fsdecode(path)), 0)
        if lacking := wanted - places.keys():
            raise gone(f"{len(lacking)} of its files are no longer kept")
        return ContentReader(places)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        private_folder(self._folder)
        path = private_file(self._folder / "index.db")
        with closing(sqlite3.connect(path, timeout=60.0)) as db:
            db.executescript(_SCHEMA)
            with db:
                yield db

    def _keep(self, db: sqlite3.Connection, writer: PackWriter, entries: Sequence[SelectedEntry]) -> Kept:
        files = [entry for entry in entries if entry.is_file]
        seen = {
            row[0]: row[1:]
            for row in _among(
                db,
                "select path, size, mtime, ctime, inode, content, secret, used_at from seen where path",
                [os.fsencode(each.source) for each in files],
            )
        }
        known = {
            row[0]
            for row in _among(db, "select content from kept where content", [row[4] for row in seen.values()])
        }
        now, rows = time.time(), list[tuple[object, ...]]()
        contents: dict[str, str] = {}
        key_files: list[str] = []
        for entry in files:
            facts: tuple[int, int, int, int] | None = stamp_of(entry.status)
            row = seen.get(os.fsencode(entry.source))
            copied = entry.status.st_size <= LARGE or entry.source.startswith(f"{self._folder}{os.sep}")
            if row is not None and row[:4] == facts and (row[4] in known or not copied):
                content, secret = row[4], bool(row[5])
                if row[6] > now - UNUSED_S:
                    facts = None
            else:
                content, secret = writer.add(entry, copied=copied)
                if time.time_ns() - max(facts[1:3]) < SETTLED_NS and copied:
                    facts = (-1, *facts[1:])  # read again the next time
            contents[entry.source] = content
            if facts is not None:
                rows.append((os.fsencode(entry.source), *facts, content, int(secret), now))
            if secret and not entry.named:
                key_files.append(entry.path)
        db.executemany("insert or replace into seen values(?, ?, ?, ?, ?, ?, ?, ?)", rows)
        tree = tree_of(_tree_entry(entry, contents.get(entry.source, "")) for entry in entries if entry.path)
        db.executemany(
            "update pack set used_at = ? where name = ?",
            [
                (now, name)
                for (name,) in set(_among(db, "select pack from kept where content", set(contents.values())))
            ],
        )
        return Kept(tree, tuple(key_files))

    def _forget(self, db: sqlite3.Connection, tree: Tree) -> None:
        """Remove the packs that were used longest ago while there are too many bytes of them."""
        now = time.time()
        total = db.execute("select coalesce(sum(size), 0) from pack").fetchone()[0]
        for name, size, used_at in db.execute(
            "select name, size, used_at from pack order by used_at"
        ).fetchall():
            if total <= KEPT or used_at > now - UNUSED_S:
                break
            db.execute("delete from kept where pack = ?", (name,))
            db.execute("delete from pack where name = ?", (name,))
            (self._folder / name).unlink(missing_ok=True)
            total -= size
        db.execute("delete from seen where used_at < ?", (now - FORGOTTEN_S,))
        db.execute("delete from tree where used_at < ? and id != ?", (now - FORGOTTEN_S, tree.id))


def _tree_entry(entry: SelectedEntry, content: str) -> TreeEntry:
    mode = entry.status.st_mode
    if stat.S_ISDIR(mode):
        return TreeEntry(entry.path, "folder", sent_mode(mode), entry.private)
    if stat.S_ISLNK(mode):
        return TreeEntry(entry.path, "link", sent_mode(mode), entry.private, 0, os.readlink(entry.source))
    return TreeEntry(entry.path, "file", sent_mode(mode), entry.private, entry.status.st_size, content)


def _among(db: sqlite3.Connection, select: str, values: Iterable[str | bytes]) -> Iterator[tuple]:
    """Rows of `select … where COLUMN` for which the column is among `values`."""
    values = list(values)
    for first in range(0, len(values), 500):
        some = values[first : first + 500]
        yield from db.execute(f"{select} in ({','.join('?' * len(some))})", some)
