"""A call through the process that forks is what a call of the console script is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from forkserver import anew
from support import ORCH, Folder, fork_server


@pytest.mark.parametrize("words", [("validate", "task.yml"), ("ps", "--json"), ("nonsense",), ("--version",)])
def test_both_end_alike_and_say_the_same(folder: Folder, words: tuple[str, ...]) -> None:
    folder.write("task.yml", "type: task\nimage: x\nnodes: many\n")
    said = folder.orch(*words)
    done = subprocess.run([*ORCH, *words], cwd=folder.path, capture_output=True, text=True, check=False)
    assert (said.code, said.out, said.err) == (done.returncode, done.stdout, done.stderr)


def test_the_environment_is_the_call_s_and_nothing_of_it_stays(folder: Folder) -> None:
    def width(columns: int) -> int:
        said = folder.orch("--help", env={"COLUMNS": str(columns)})
        return max(map(len, said.out.splitlines()))

    before = dict(os.environ)
    assert width(60) <= 60 < width(120) <= 120
    assert dict(os.environ) == before


def test_what_does_not_end_in_time_is_ended(folder: Folder) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        folder.orch("offers", timeout=0.0)
    assert folder.orch("ps").code == 0


def test_words_and_variables_that_an_interpreter_reads_once_get_one_of_their_own() -> None:
    own = dict(os.environ)
    assert not anew(["up", "fleet.yml"], {**own, "HOME": "/elsewhere"})
    assert anew(["run", "t.yml", "--env", "TOKEN=x"], own)
    assert anew(["ps"], {**own, "PYTHONPATH": "/elsewhere"})
    assert sys.executable in fork_server()._process.args  # type: ignore[operator]
