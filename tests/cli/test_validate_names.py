"""Names that are not text: every form of `orch validate` tells of such a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kit.support import ORCH, fork_server

# As with PYTHONIOENCODING=utf-8:strict.
STRICT = """
import sys
from orch.cli.main import main

sys.stdout, sys.stderr = (open(each, "w", 1, encoding="utf-8", errors="strict") for each in (1, 2))
sys.exit(main())
"""


@pytest.mark.parametrize("where", ["relative", "absolute"])
@pytest.mark.parametrize("format", ["human", "json", "github", "sarif"])
def test_a_file_whose_name_is_no_text_is_told_of(tmp_path: Path, format: str, where: str) -> None:
    (tmp_path / os.fsdecode(b"k\xff.yml")).write_text("type: task\nimage: x\nnodes: many\n")
    folder = "." if where == "relative" else str(tmp_path)
    words = [*ORCH, "validate", folder, "--format", format]
    code, out, err = fork_server().call(words, tmp_path, os.environ, code=STRICT)
    said = out + err
    assert (code, "ORCH112" in said) == (3, True), said
    if format == "json":
        (found,) = json.loads(said)["diagnostics"]
        assert found["file"].endswith("/k\\udcff.yml")
    if format == "sarif":
        (result,) = json.loads(said)["runs"][0]["results"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("k%FF.yml")
