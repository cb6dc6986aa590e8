"""Trees of files on a node: whole or not there, shared, bounded, and told where the disk has no room."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderLab, folder_of
from kit.nodes.nodelab import wait_until

from orch.runner.errors import NodeDiskFull, RunFailed
from orch.runner.events import Silent
from orch.runner.launch.files import Source
from orch.runner.node.runtime import FilesMissing
from orch.runner.upload.packs import LARGE
from orch.runner.upload.selection import select_entries
from orch.runner.upload.send import Uploads
from orch.runner.upload.snapshot import Snapshots
from orch.spec.state import NodeState


@dataclass
class Box:
    """A node that is a folder, and what is sent to it of a folder `source`."""

    lab: FolderLab
    node: NodeState
    path: Path

    @property
    def trees(self) -> Path:
        return folder_of(self.node) / "files" / "trees"

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.trees.iterdir()}

    def put(self, **files: bytes | str) -> None:
        for name, content in files.items():
            path = self.path / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def keep(self) -> str:
        entries = select_entries(Source(self.path / "source")).entries
        return Snapshots(self.path / ".orch").keep(entries).tree.id

    def send(self, tree: str) -> None:
        present = (
            sorted(self.trees.iterdir(), key=os.path.getmtime, reverse=True) if self.trees.exists() else []
        )
        missing = FilesMissing("missing", trees=(tree,), present=tuple(path.name for path in present))
        with closing(Uploads(self.path / ".orch", Silent())) as uploads:
            uploads.send(self.lab.connector, self.node, missing)

    def held(self, tree: str) -> None:
        """A job that has the tree."""
        run = folder_of(self.node) / "runs" / "orch-job-0-0-abcdefgh"
        run.mkdir(parents=True)
        (run / "trees").write_text(f"{tree}\n")

    def left(self) -> set[str]:
        return {path.name for path in self.trees.parent.iterdir()} - {"trees", "lock"}


@pytest.fixture
def box(tmp_path: Path) -> Box:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    return Box(lab, lab.node(0), tmp_path)


def disk(box: Box, monkeypatch: pytest.MonkeyPatch, kib: int) -> None:
    """A disk of that many KiB, of which the trees take some: a `df` that tells of it."""
    programs = box.path / "bin"
    programs.mkdir(exist_ok=True)
    script = f"""#!/bin/sh
set -- $(du -sk {folder_of(box.node)})
echo Filesystem 1024-blocks Used Available Capacity Mounted
echo disk {kib} $1 $(({kib} - $1)) 1% /
"""
    (programs / "df").write_text(script)
    (programs / "df").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def test_a_tree_is_made_of_what_is_there_and_the_difference(box: Box) -> None:
    box.put(**{"a.py": "one", "deep/b": b"\0" * 10_000, "gone": "x", os.fsdecode(b"latin-\xe9"): "z"})
    (box.path / "source" / "deep" / "secret").write_text("hush")
    (box.path / "source" / "deep" / "secret").chmod(0o600)
    (box.path / "source" / "link").symlink_to("a.py")
    first = box.keep()
    box.send(first)
    assert (box.trees / first / "open" / "link").read_text() == "one"
    assert (box.trees / first / "private" / "deep" / "secret").read_text() == "hush"
    held = (box.trees / first / "open" / "deep" / "b").stat().st_ino
    box.held(first)
    box.put(**{"a.py": "two", "odd \n -name": "y"})
    (box.path / "source" / "gone").unlink()
    second = box.keep()
    box.send(second)
    assert box.names == {first, second}
    assert (box.trees / first / "open" / "a.py").read_text() == "one"
    assert (box.trees / second / "open" / "a.py").read_text() == "two"
    assert (box.trees / second / "open" / "odd \n -name").read_text() == "y"
    assert not (box.trees / second / "open" / "gone").exists()
    assert (box.trees / second / "open" / os.fsdecode(b"latin-\xe9")).read_text() == "z"
    assert (box.trees / second / "open" / "deep" / "b").stat().st_ino == held
    # A base that no job has becomes the new tree.
    box.put(**{"a.py": "three"})
    third = box.keep()
    box.send(third)
    assert box.names == {first, third}
    assert box.left() == set()


def test_a_disk_without_room_is_told_before_anything_is_sent(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(box, monkeypatch, 2000)
    box.put(big=os.urandom(3_000_000))
    with pytest.raises(NodeDiskFull) as caught:
        box.send(box.keep())
    assert "KiB, and" in (caught.value.detail or "")
    assert box.names == box.left() == set()


def test_trees_that_no_job_has_make_room_the_oldest_first(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(box, monkeypatch, 9000)
    sent: list[str] = []
    for number in range(3):
        (box.path / "source" / "big").unlink(missing_ok=True)
        box.put(big=os.urandom(3_000_000))
        sent.append(box.keep())
        if number == 0:
            box.send(sent[0])
            os.utime(box.trees / sent[0], (1, 1))
            box.held(sent[0])
        else:
            box.send(sent[number])
    assert box.names == {sent[0], sent[2]}
    assert box.left() == set()


def test_half_an_archive_is_no_tree(box: Box) -> None:
    box.put(big=os.urandom(LARGE + 1), small="x")
    tree = box.keep()
    # A file that is too large to be kept changes after the run was submitted.
    with (box.path / "source" / "big").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(RunFailed, match="cannot be sent") as caught:
        box.send(tree)
    assert "has changed since" in (caught.value.detail or "")
    assert box.left() == set()
    assert box.names == set()


def test_what_was_kept_is_sent_though_it_was_edited_meanwhile(box: Box) -> None:
    box.put(code="as it was submitted")
    tree = box.keep()
    box.put(code="edited")
    box.send(tree)
    assert (box.trees / tree / "open" / "code").read_text() == "as it was submitted"


def test_a_large_pack_of_a_fetched_repository_is_kept_though_the_next_fetch_replaces_it(box: Box) -> None:
    fetched = box.path / ".orch" / "uploads" / "repos" / "r"
    fetched.mkdir(parents=True)
    (fetched / "pack").write_bytes(content := os.urandom(LARGE + 1))
    kept = Snapshots(box.path / ".orch").keep(select_entries(Source(fetched)).entries)
    (fetched / "pack").unlink()
    box.send(kept.tree.id)
    assert (box.trees / kept.tree.id / "open" / "pack").read_bytes() == content


def test_two_that_send_the_same_at_once_both_have_it(box: Box) -> None:
    box.put(**{f"file-{number}": os.urandom(20_000) for number in range(50)})
    tree = box.keep()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: box.send(tree), range(4)))
    assert box.names == {tree}
    assert len(list((box.trees / tree / "open").iterdir())) == 50
    assert box.left() == set()


def test_a_tree_that_was_not_synced_before_the_machine_restarted_is_sent_again(box: Box) -> None:
    box.put(code="x")
    tree = box.keep()
    box.send(tree)
    kept = box.trees / tree
    wait_until((kept / "synced").exists)
    (kept / "synced").unlink()
    (kept / "boot").write_text("another boot\n")
    (kept / "open" / "code").write_text("")
    box.send(tree)
    assert (kept / "open" / "code").read_text() == "x"
    assert box.left() == set()
