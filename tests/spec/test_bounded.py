"""A file of a stranger may have 150,000 mistakes: some are shown, and the others counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orch.spec.diagnostics import Severity
from orch.spec.document.bounded import CODE, MOST, MOST_OF_FILE
from orch.spec.loader.load import load_paths

FLEET = "type: fleet\nname: a\n"
FILES = {
    "one key": FLEET + "x: 1\n" * 150_000,
    "many keys": FLEET + "".join(f"x{at}: 1\n" for at in range(80_000)),
    "a list": "type: task\nimage: x\nfiles:\n" + "- {local_pat: x}\n" * 50_000,
    "references": "type: task\nimage: x\ncommands:\n"
    + "".join(f"- ${{{{ foo.{at} }}}}\n" for at in range(50_000)),
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_what_a_file_is_told_is_bounded(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.yml"
    file.write_text(text)
    loaded = load_paths([file], untrusted=())
    assert loaded.failed
    assert loaded.documents == ()
    assert len(loaded.diagnostics) == MOST_OF_FILE + 1
    (rest,) = (each for each in loaded.diagnostics if each.code == CODE)
    assert rest.severity is Severity.ERROR
    assert int(rest.summary.split(" ")[0].replace(",", "")) > 40_000


def test_what_a_folder_is_told_is_bounded(tmp_path: Path) -> None:
    for at in range(60):
        (tmp_path / f"f{at:02}.yml").write_text(f"type: fleet\nname: f{at}\n" + "x: 1\n" * 200)
    loaded = load_paths([tmp_path])
    assert len([each for each in loaded.diagnostics if each.code != CODE]) == MOST
    rest = [each for each in loaded.diagnostics if each.code == CODE]
    assert len(rest) == MOST // MOST_OF_FILE + 1
    assert "in 50 other files" in rest[-1].summary
    assert {each.span.file for each in rest[:-1]} == {str(tmp_path / f"f{at:02}.yml") for at in range(10)}


def test_an_error_after_many_warnings_is_an_error(tmp_path: Path) -> None:
    """Variables that are not set here are warnings; an unknown property is an error."""
    file = tmp_path / "a.yml"
    lines = "".join(f"  A{at}: ${{{{ env.NOT_SET_{at} }}}}\n" for at in range(MOST_OF_FILE + 50))
    file.write_text(f"type: task\nname: a\nimage: x\ncommands: [x]\nenv:\n{lines}unknown_property: 1\n")
    loaded = load_paths([file], environ={})
    assert loaded.failed
    assert loaded.documents == ()


def test_the_command_prints_and_holds_little(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(FILES["one key"])
    words = [
        str(Path(sys.executable).parent / "orch"),
        "validate",
        "--untrusted",
        "--format",
        "json",
        "a.yml",
    ]
    limited = ["prlimit", "--as=900000000", *words]  # address space: what is held was 977 MB
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert len(done.stdout) < 200_000
    assert json.loads(done.stdout)["diagnostics"][-1]["code"] == CODE
