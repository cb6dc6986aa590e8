"""The file of `orch up --plan --result`: it takes the place of a former result, and of nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.support import Folder

from orch.stacks.errors import ProjectError
from orch.stacks.saved_plans.result import recorded


def test_a_result_takes_the_place_of_a_former_one(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.touch()
    for plan in ("one", "two"):
        with recorded(file) as progress:
            assert json.loads(file.read_text())["exit_code"] == 1
            progress.plan = plan
        assert json.loads(file.read_text())["plan"] == plan


@pytest.mark.parametrize(
    "text", ["type: fleet\nname: p5\n", '{"format": "orch-plan", "schema": 1}\n', "\udcff"]
)
def test_another_file_is_not_overwritten(tmp_path: Path, text: str) -> None:
    file = tmp_path / "p5.yml"
    file.write_text(text, errors="surrogateescape")
    before = file.read_bytes()
    with pytest.raises(ProjectError, match="is not overwritten"), recorded(file):
        raise AssertionError("nothing is applied")
    assert file.read_bytes() == before


def test_a_plan_stays_that_was_named_as_its_result(folder: Folder) -> None:
    (folder.path / "plan.json").write_text('{"format": "orch-plan", "schema": 1}\n')
    said = folder.orch("up", "--plan", "plan.json", "--result", "plan.json")
    assert (said.code, said.out) == (3, "")
    assert "plan.json: error: this file is no result of an apply" in said.err
    assert json.loads((folder.path / "plan.json").read_text()) == {"format": "orch-plan", "schema": 1}
