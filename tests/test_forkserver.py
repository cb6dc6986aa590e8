"""A call through the process that forks is what a call of the console script is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from kit.engine.forkserver import anew, interpreter
from kit.support import ORCH, Folder, fork_server


def both_say(folder: Folder, words: tuple[str, ...], env: dict[str, str]) -> str:
    """What a call says on both streams, by the process that forks as by the console script."""
    folder.write("task.yml", "type: task\nimage: x\nnodes: many\n")
    assert not anew(words, {**os.environ, **env})
    said = folder.orch(*words, env=env)
    done = subprocess.run(
        [*ORCH, *words],
        cwd=folder.path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.code, said.out, said.err) == (done.returncode, done.stdout, done.stderr)
    return said.out + said.err


@pytest.mark.parametrize("words", [("validate", "task.yml"), ("ps", "--json"), ("nonsense",), ("--version",)])
def test_both_end_alike_and_say_the_same(folder: Folder, words: tuple[str, ...]) -> None:
    both_say(folder, words, {})


def test_a_job_of_a_workflow_has_its_colours(folder: Folder) -> None:
    assert "\x1b[" not in both_say(folder, ("--help",), {"GITHUB_ACTIONS": ""})
    assert "\x1b[" in both_say(folder, ("--help",), {"GITHUB_ACTIONS": "true"})


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


def test_words_and_variables_that_an_interpreter_reads_once_get_one_of_their_own(folder: Folder) -> None:
    own = dict(os.environ)
    assert not anew(["up", "fleet.yml"], {**own, "HOME": "/elsewhere"})
    assert anew(["engine", "env"], own)
    assert anew(["run", "t.yml", "--env", "TOKEN=x"], own)
    assert anew(["ps"], {**own, "PYTHONPATH": "/elsewhere"})
    code = "import sys; print(sys.executable)"
    assert fork_server().call(["-c"], folder.path, own, code=code) == (0, f"{sys.executable}\n", "")


def test_what_an_engine_starts_is_what_the_true_interpreter_starts() -> None:
    def said(python: str, code: str) -> tuple[int, str]:
        done = subprocess.run([python, "-c", code, "word"], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    seen = "import os, sys; print(os.getcwd(), sys.argv, os.getppid()); sys.exit(3)"
    serves = "  # from a.plugin import main; main()"  # by which a provider is known
    for code in (
        f"import sys; print(sys.executable); {seen}",
        seen + serves,
        f"import os; os.kill(os.getpid(), 9){serves}",
    ):
        assert said(interpreter(), code) == said(sys.executable, code)
    serve = "from orch.providers.orch.plugin import main; main()"
    words = [interpreter(), "-c", serve, "127.0.0.1:1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        assert int(served.stdout.readline()) > 0
        served.kill()  # and what was forked ends as well: the pipe does
        assert served.stdout.read() == ""
