"""Whatever a file holds, reading it ends soon and never in an exception; what is valid reads back equal.

`ORCHCTL_FUZZ_RUNS` sets the number of mutated documents.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import time
from pathlib import Path

from kit.dump import dump

from orch.cli.validate import Format, validate
from orch.spec.codes import CODES
from orch.spec.diagnostics import render_human
from orch.spec.loader.load import Document, load_paths

HERE = Path(__file__).parent
RUNS = int(os.environ.get("ORCHCTL_FUZZ_RUNS", "4000"))
PIECES = [
    b":", b"- ", b"\n", b"\t", b"  ", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"<<: *a", b"|", b">", b"'",
    b'"', b"#", b"!!x ", b"---\n", b"...\n", b"~", b"..", b"-1", b"999999999999999999999", b"${{ ", b" }}",
    b"$$", b"\xff", b"\x00", b"\xc2\x85", b"\xe2\x80\xa8", b"\r", b"null", b"true", b"GB", b"nodes: ",
    b"resources: ", b"type: ", b"%", b"? ", b"@", b"\\", b"\xef\xbb\xbf",
]  # fmt: skip


def mutated(data: bytes, others: list[bytes], dice: random.Random) -> bytes:
    for _ in range(dice.randint(1, 6)):
        at = dice.randint(0, len(data))
        until = min(len(data), at + dice.randint(0, 12))
        choice = dice.randrange(6)
        if choice == 0:
            data = data[:at] + data[until:]
        elif choice == 1:
            data = data[:at] + dice.choice(PIECES) + data[at:]
        elif choice == 2:
            data = data[:at] + dice.choice(PIECES) + data[until:]
        elif choice == 3:
            data = data[:at] + data[at:until] * dice.randint(2, 5) + data[until:]
        elif choice == 4:
            lines = data.split(b"\n")
            dice.shuffle(lines)
            data = b"\n".join(lines)
        else:
            other = dice.choice(others)
            cut = dice.randint(0, len(other))
            data = data[:at] + other[cut : cut + 60] + data[at:]
    return data


def test_no_document_breaks_the_reader(tmp_path: Path) -> None:
    seeds = [path.read_bytes() for path in sorted(HERE.rglob("*.yml"))]
    dice = random.Random(20)
    paths = [tmp_path / "fuzzed.yml", tmp_path / "orch.yml"]
    for run in range(RUNS):
        data = mutated(dice.choice(seeds), seeds, dice)
        path = paths[run % 9 == 0]
        path.write_bytes(data)
        began = time.process_time()  # of this process alone: others may be at work
        try:
            loaded = load_paths([path], environ={"HOME": "/home/ada"}, launch=run % 5 == 0)
            text = render_human(loaded.diagnostics)
            code = told(path, list(Format)[run % len(Format)])
        except Exception as error:
            raise AssertionError(f"run {run}: {data!r}") from error
        if time.process_time() - began >= 1:  # once may be Python's search for cycles
            began = time.process_time()
            load_paths([path], environ={"HOME": "/home/ada"}, launch=run % 5 == 0)
            assert time.process_time() - began < 1, data
        assert code in (0, 3), data
        assert "this value does not fit" not in text, data
        assert "pydantic" not in text, data
        assert all(each.code in CODES for each in loaded.diagnostics)
        assert loaded.failed or loaded.documents or loaded.diagnostics, data
        for document in loaded.documents:
            check_written(document, tmp_path / "again" / path.name)


def told(path: Path, format: Format) -> int:
    """The exit code of `orch validate`; what it prints is let go."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return validate([str(path)], format)


def check_written(document: Document, path: Path) -> None:
    """What was read is written again and reads as the same."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(dump(document.model), encoding="utf-8")
    (again,) = load_paths([path], environ={"HOME": "/home/ada"}).documents
    assert again.model == document.model, path.read_text("utf-8")
