"""What `.ci/run` says of the time that tests took."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kit.support import ROOT

pytestmark = pytest.mark.quick

REPORT = """<testsuites><testsuite>
<testcase classname="tests.cli.test_main" name="one" time="2.5"/>
<testcase classname="tests.runner.health.test_rules.TestRules" name="two" time="{seconds}"/>
</testsuite></testsuites>"""


def judged(folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    (folder / "report.xml").write_text(REPORT.format(seconds=seconds))
    words = [sys.executable, str(ROOT / "scripts/durations.py"), str(folder / "report.xml")]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_a_folder_that_exceeds_its_budget_fails_by_the_name_of_its_slowest_file(tmp_path: Path) -> None:
    said = judged(tmp_path, 1.0)
    assert said.returncode == 0, said.stdout
    said = judged(tmp_path, 100_000.0)
    assert said.returncode == 1
    assert "too slow: tests/runner: 100000 s" in said.stdout
    assert "tests/runner/health/test_rules.py 100000 s" in said.stdout


def test_every_folder_of_tests_has_a_budget() -> None:
    budgets = json.loads((ROOT / "tests/durations.json").read_text())
    folders = {"tests", *(str(file.parent.relative_to(ROOT)) for file in ROOT.glob("tests/*/**/test_*.py"))}
    assert {"/".join(folder.split("/")[:2]) for folder in folders} == set(budgets)
