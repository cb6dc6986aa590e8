"""What had no room a short while ago."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orch.catalog.shortages import COUNTS_S, MOST_BYTES, Shortage, add, recent

H100 = Shortage("nebius", "gpu-h100", "eu-north1", "fabric-2", spot=False, at=1000)


def test_the_last_one_of_each_place_counts_for_ten_minutes(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "no-room.jsonl"
    assert recent(file, 1000) == ()
    again, spot = replace(H100, at=1200), replace(H100, spot=True, at=1100)
    add(file, [H100, spot], 1000)
    add(file, [again], 1200)
    assert recent(file, 1200) == (spot, again)
    assert recent(file, 1100 + COUNTS_S) == (spot, again)
    assert recent(file, 1101 + COUNTS_S) == (again,)
    assert recent(file, 1201 + COUNTS_S) == ()
    # A clock that was set back says nothing of the future.
    assert recent(file, 1150) == (H100, spot)


def test_lines_that_do_not_read_are_passed_over_and_old_ones_go(tmp_path: Path) -> None:
    file = tmp_path / "no-room.jsonl"
    file.write_text('{"backend": "aws"}\nnot JSON\n' + "x" * MOST_BYTES + "\n")
    add(file, [H100], 1000)
    assert recent(file, 1000) == (H100,)
    assert file.stat().st_size < MOST_BYTES


def test_a_folder_that_cannot_be_written_keeps_nobody_from_anything(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    add(tmp_path / "file" / "no-room.jsonl", [H100], 1000)
    assert recent(tmp_path / "file" / "no-room.jsonl", 1000) == ()
