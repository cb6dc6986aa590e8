"""What `orch cp` carries, and where to, on nodes that are folders of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderLab

from orch.runner.access.copying import NodeSide, PathMissing, Place, fetch, parse_place, push
from orch.runner.errors import RunnerError
from orch.runner.upload.archive import END, Unpacking, header, padding, pieces


@pytest.fixture
def side(tmp_path: Path) -> Iterator[NodeSide]:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    yield NodeSide(lab.connector, lab.node(0))
    lab.end()


def quiet(size: int) -> None:
    del size


def test_a_word_is_a_path_here_or_one_of_the_other_side() -> None:
    assert parse_place("train:/out") == Place("train", "/out")
    assert parse_place("train/3:/out/a:b") == Place("train", "/out/a:b", 3)
    assert parse_place("gpu1:") == Place("gpu1", ".")
    assert [parse_place(text) for text in ("./a:b", "/a/b:c", "a/b", "~/x:y", "a/b:c", ".")] == [None] * 6


def test_a_folder_goes_there_and_comes_back_as_it_was(side: NodeSide, tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "there"
    (source / "deep").mkdir(parents=True)
    data = os.urandom(700_001)
    (source / "deep" / "model.bin").write_bytes(data)
    (source / "run.sh").write_text("x")
    (source / "run.sh").chmod(0o755)
    (source / "odd \n name").write_text("y")
    (source / "link").symlink_to("deep/model.bin")
    there.mkdir()
    told: list[int] = []
    pushed = push(side, source, f"{there}/", told.append)  # into the folder
    assert (pushed.files, pushed.size) == (3, 700_003)
    assert told[-1] >= 700_003
    assert (there / "source" / "link").read_bytes() == data
    push(side, source, str(there / "renamed"), quiet)  # as that name
    assert (there / "renamed" / "run.sh").stat().st_mode & 0o777 == 0o755
    back = fetch(side, str(there / "renamed"), tmp_path / "back", quiet)
    assert (back.files, back.size) == (3, 700_003)
    assert (tmp_path / "back" / "deep" / "model.bin").read_bytes() == data
    assert (tmp_path / "back" / "odd \n name").read_text() == "y"
    (tmp_path / "into").mkdir()
    fetch(side, str(there / "renamed" / "run.sh"), tmp_path / "into", quiet)
    assert (tmp_path / "into" / "run.sh").read_text() == "x"
    fetch(side, str(there / "renamed" / "run.sh"), tmp_path / "other.sh", quiet)
    assert (tmp_path / "other.sh").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".orch-cp")] == []


def test_what_is_not_there_leaves_what_is_here_as_it_was(side: NodeSide, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(PathMissing, match="there is no /no/such on node box-0"):
        fetch(side, "/no/such", tmp_path / "kept", quiet)
    assert (tmp_path / "kept").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "boxes"}


def unpacked(folder: Path, archive: bytes) -> Unpacking:
    unpacking = Unpacking(folder)
    for at in range(0, len(archive), 1000):
        unpacking.write(archive[at : at + 1000])
    return unpacking


def entry(name: str, text: bytes = b"", kind: bytes = b"0", link: str = "") -> bytes:
    return header(name, kind, 0o6755, size=len(text), link=link) + text + padding(len(text))


def test_a_node_writes_nothing_beside_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    hostile = (
        entry("out", kind=b"5"),
        entry("out/ok", b"x"),
        entry("../victim", b"theirs"),
        entry(str(victim), b"theirs"),
        entry("out/up", kind=b"2", link="../../.."),
        entry("out/up/victim", b"theirs"),
        entry("out/abs", kind=b"2", link=str(tmp_path)),
        entry("out/abs/victim", b"theirs"),
        entry("out/hard", kind=b"1", link="../victim"),
        entry("out/device", kind=b"3"),
        entry("out/fine", kind=b"2", link="ok"),
    )
    unpacking = unpacked(tmp_path / "new", b"".join(hostile) + END)
    made = unpacking.finish()
    assert made is not None
    assert victim.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "new"}
    assert (made / "fine").read_text() == "x"
    assert (made / "ok").stat().st_mode & 0o7777 == 0o755
    assert not (made / "device").exists()
    assert not (made / "hard").exists()
    assert unpacking.received.left_out == 4


def test_an_archive_that_ends_early_is_no_copy(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(100_000))
    whole = b"".join(pieces(tmp_path / "big", "big"))
    unpacking = unpacked(tmp_path / "new", whole[:50_000])
    with pytest.raises(RunnerError, match="not whole"):
        unpacking.finish()
