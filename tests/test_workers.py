"""What the tests' own plugin sees to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_quick_test_finds_no_docker_and_what_others_made_is_removed_after_it(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    env = {key: value for key, value in os.environ.items() if key not in ("DOCKER_HOST", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "workers", "test_some.py"],
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
