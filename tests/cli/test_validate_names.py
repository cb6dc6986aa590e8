"""Names that are not text: every form of `orch validate` tells of such a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("where", ["relative", "absolute"])
@pytest.mark.parametrize("format", ["human", "json", "github", "sarif"])
def test_a_file_whose_name_is_no_text_is_told_of(tmp_path: Path, format: str, where: str) -> None:
    (tmp_path / os.fsdecode(b"k\xff.yml")).write_text("type: task\nimage: x\nnodes: many\n")
    folder = "." if where == "relative" else str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "orch.cli.main", "validate", folder, "--format", format],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        check=False,
    )
    said = (done.stdout + done.stderr).decode("utf-8")
    assert (done.returncode, "ORCH112" in said) == (3, True), said
    if format == "json":
        (found,) = json.loads(said)["diagnostics"]
        assert found["file"].endswith("/k\\udcff.yml")
    if format == "sarif":
        (result,) = json.loads(said)["runs"][0]["results"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("k%FF.yml")
