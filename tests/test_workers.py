"""What the tests' own plugin sees to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
import pytest

@pytest.fixture(scope="session")
def lab():
    yield
    assert "DOCKER_HOST" not in os.environ, "what was made can be removed"

def test_with_parts(lab):
    assert "DOCKER_HOST" not in os.environ

def test_quick():
    assert "DOCKER_HOST" in os.environ

def test_with_a_docker_of_its_own(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///mine")

def test_with_parts_after_it(lab):
    assert "DOCKER_HOST" not in os.environ

def test_quick_at_the_end():
    assert "DOCKER_HOST" in os.environ
"""


SAMPLED = """
import pytest
from kit import samples

@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", range(10))
def test_one_in_four(case):
    assert case in (0, 4, 8) or not samples.Run.quick

@pytest.mark.parametrize("case", range(16))
def test_the_first_and_one_in_six_of_the_others(case):
    assert case < samples.FEW or case in (6, 12) or not samples.Run.quick

@pytest.mark.parametrize("few", range(6))
def test_all_of_them(few):
    assert samples.some(12, 4) == (3 if samples.Run.quick else 12)
"""


def passed(folder: Path, tests: str, *words: str) -> str:
    """What pytest says of tests with the plugin, all of which pass."""
    (folder / "test_some.py").write_text(tests)
    env = {key: value for key, value in os.environ.items() if key not in ("DOCKER_HOST", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "kit.workers", *words],
        cwd=folder,
        env={**env, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_quick_test_finds_no_docker_and_what_others_made_is_removed_after_it(tmp_path: Path) -> None:
    assert "5 passed" in passed(tmp_path, TESTS)


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("not soak", "32 passed"),
        ("quick", "17 passed, 15 deselected"),
    ],
)
def test_a_run_of_quick_tests_takes_a_sample_and_every_other_run_all(
    tmp_path: Path, chosen: str, told: str
) -> None:
    assert told in passed(tmp_path, SAMPLED, "-m", chosen)
