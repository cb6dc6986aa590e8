"""Brings trees of files to a node: what it lacks of one, as a tar archive made while it is sent.

On the node a tree lies in `/var/lib/orch/files/trees/ID`, root's alone; jobs see it read-only and copy it. A
tree that resembles one of the node's is made of that one and the difference; where a job has that one, of
hard links to it. A tree gets its name when it is whole. Trees that no job uses go, the least recently used
first, when they take more than a tenth of the disk, or when an upload needs their space.
"""

from __future__ import annotations

import secrets
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orch.runner.errors import RunFailed
from orch.runner.events import FilesProgress, Processor
from orch.runner.node.container import failure
from orch.runner.node.runtime import FilesMissing
from orch.runner.node_api.commands import LOOKUP, NODE_HOME, Command, StdinSource, as_root
from orch.runner.node_api.connector import Connector
from orch.runner.upload.archive import END, PIECE, header, padding
from orch.runner.upload.packs import ContentReader
from orch.runner.upload.snapshot import Snapshots
from orch.runner.upload.tree import Delta, Tree, TreeEntry, delta, nearest
from orch.spec.state import NodeState
from orch.templates import render

TRANSFER_S = 6 * 3600.0
TELL_EVERY_S = 1.0
# What the node keeps at most, and of these how many a client looks at for the nearest.
TREES = 64
LOOKED_AT = 6
GONE = 43
# Each file takes a block and an inode beside its bytes.
ENTRY_BYTES = 4096
_BLOCK = 512


@dataclass
class Uploads:
    """Trees on their way to nodes. What one node needs is prepared once for all."""

    dot: Path
    processor: Processor
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _trees: dict[str, Tree | None] = field(default_factory=dict[str, "Tree | None"])
    _bases: dict[tuple[str, tuple[str, ...]], str | None] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], "str | None"]
    )
    _archives: dict[tuple[str, str | None], _Archive] = field(
        default_factory=dict[tuple[str, "str | None"], "_Archive"]
    )

    def send(self, connector: Connector, node: NodeState, missing: FilesMissing) -> None:
        """Send a node the trees it said it lacks.

        Raises NodeDiskFull, RunFailed, and what `Connector.run` raises.
        """
        archives = [self._archive(tree, missing.present) for tree in missing.trees]
        total = sum(archive.size for archive in archives)
        progress = _Progress(node, total, self.processor)
        progress.tell()
        try:
            for archive in archives:
                self._send_one(connector, node, archive, progress)
        finally:
            progress.end()

    def close(self) -> None:
        for archive in self._archives.values():
            archive.reader.close()

    def _send_one(
        self, connector: Connector, node: NodeState, archive: _Archive, progress: _Progress
    ) -> None:
        result = connector.run(node, _command(archive, progress))
        if result.exit_code == GONE:
            whole = self._archive(archive.tree, ())
            progress.total += whole.size
            result = connector.run(node, _command(whole, progress))
        if not result.ok:
            raise failure(result, f"the files of the run could not be kept on node {node.name}")

    def _archive(self, tree_id: str, present: Sequence[str]) -> _Archive:
        with self._lock:
            tree = self._tree(tree_id)
            if tree is None:
                raise RunFailed(
                    "the files of this run cannot be sent",
                    detail="they are kept only where it was submitted",
                    hint="submit it again",
                    reason="executor_error",
                )
            key = (tree_id, self._nearest(tree, present))
            base = self._tree(key[1]) if key[1] is not None else None
            if key not in self._archives:
                change = delta(tree, base)
                reader = Snapshots(self.dot).reader(change.add)
                reader.prepare()
                self._archives[key] = _Archive(tree_id, change, reader)
            return self._archives[key]

    def _nearest(self, tree: Tree, present: Sequence[str]) -> str | None:
        """The name of a node's tree that this machine knows too and that shares the most with `tree`."""
        known = tuple(each for each in present if self._tree(each) is not None)[:LOOKED_AT]
        if (tree.id, known) not in self._bases:
            candidates = [each for each in map(self._tree, known) if each is not None]
            base = nearest(tree, candidates)
            self._bases[tree.id, known] = base.id if base else None
        return self._bases[tree.id, known]

    def _tree(self, tree_id: str) -> Tree | None:
        if tree_id not in self._trees:
            self._trees[tree_id] = Snapshots(self.dot).tree(tree_id)
        return self._trees[tree_id]


def _command(archive: _Archive, progress: _Progress) -> Command:
    text = render(
        "node-receive.sh.j2",
        home=NODE_HOME,
        tree=archive.tree,
        token=secrets.token_hex(8),
        lookup=LOOKUP,
        base=archive.change.base or "",
        trees=TREES,
        need_kib=archive.need_kib,
    )
    return Command(
        as_root(text),
        f"receive files {archive.tree[:12]}",
        StdinSource(progress.through(archive)),
        TRANSFER_S,
    )


class _Archive:
    """A difference as a tar archive, which can be iterated again; headers are made once."""

    def __init__(self, tree: str, change: Delta, reader: ContentReader) -> None:
        self.tree = tree
        self.change = change
        self.reader = reader
        self._headers: list[tuple[bytes, TreeEntry | None]] | None = None
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """About its size in bytes: of its files and their headers."""
        return self.change.size + _BLOCK * (len(self.change.add) + 8)

    @property
    def need_kib(self) -> int:
        return (self.change.size + ENTRY_BYTES * len(self.change.add)) // 1024 + 1024

    def __iter__(self) -> Iterator[bytes]:
        """Pieces of at least PIECE bytes, but for the last."""
        waiting: list[bytes] = []
        size = 0
        for piece in self._pieces():
            waiting.append(piece)
            size += len(piece)
            if size >= PIECE:
                yield b"".join(waiting)
                waiting.clear()
                size = 0
        yield b"".join(waiting)

    def _pieces(self) -> Iterator[bytes]:
        for head, entry in self._parts():
            yield head
            if entry is not None:
                yield from self.reader.read(entry)
                yield padding(entry.size)
        yield END

    def _parts(self) -> list[tuple[bytes, TreeEntry | None]]:
        with self._lock:
            if self._headers is None:
                drop = "".join(f"./{place}\0" for place in self.change.drop).encode(
                    "utf-8", "surrogateescape"
                )
                self._headers = [
                    (header("delta", tarfile.DIRTYPE, 0o755), None),
                    (header("delta/open", tarfile.DIRTYPE, 0o755), None),
                    (header("delta/private", tarfile.DIRTYPE, 0o755), None),
                    *(
                        (_entry_header(entry), entry if entry.kind == "file" else None)
                        for entry in self.change.add
                    ),
                    (_small("drop", drop), None),
                    (_small("end", b""), None),
                ]
            return self._headers


_TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


def _entry_header(entry: TreeEntry) -> bytes:
    link = entry.content if entry.kind == "link" else ""
    size = entry.size if entry.kind == "file" else 0
    return header(f"delta/{entry.place}", _TYPES[entry.kind], entry.mode, size=size, link=link)


def _small(name: str, data: bytes) -> bytes:
    return header(name, tarfile.REGTYPE, 0o644, size=len(data)) + data + padding(len(data))


@dataclass
class _Progress:
    """What one node has received of all its trees, told once a second."""

    node: NodeState
    total: int
    processor: Processor
    sent: int = 0
    told: float = 0.0

    def through(self, archive: _Archive) -> _Counted:
        return _Counted(archive, self.count)

    def count(self, size: int) -> None:
        self.sent += size
        if time.monotonic() - self.told >= TELL_EVERY_S:
            self.told = time.monotonic()
            self.tell()

    def tell(self) -> None:
        done = min(self.sent, self.total)
        self.processor.handle(FilesProgress(self.node.name, done, self.total))

    def end(self) -> None:
        done = min(self.sent, self.total)
        self.processor.handle(FilesProgress(self.node.name, done, self.total, finished=True))


@dataclass(frozen=True)
class _Counted:
    archive: _Archive
    count: Callable[[int], None]

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.archive:
            yield piece
            self.count(len(piece))
