"""Variables that a task leaves open: `--env` gives them, then the caller's environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orch.cli.verbs import app
from orch.runner.errors import BadTask
from orch.runner.launch.compile import compile_run
from orch.runner.launch.run_request import RunRequest
from orch.runner.placement.placement import place_task
from orch.runner.plan.environment import is_name
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

NODE = NodeState(index=0, name="n0", address="127.0.0.1", user="root", host_key="k", internal_ip="10.0.0.1")
LAB = FleetState(name="lab", stack="lab", backend="local", placement="any", nodes=(NODE,))


def environment(cli: Mapping[str, str], caller: Mapping[str, str]) -> dict[str, str]:
    task = Task.model_validate({"commands": ["train"], "env": ["LR", "SEED"]})
    request = RunRequest(
        task, "job", 1, LAB, place_task(task, LAB), "image", Path("/base"), cli_env=cli, caller_env=caller
    )
    return compile_run(request).environments[0]


def test_a_variable_given_on_the_command_line_need_not_be_exported() -> None:
    found = environment({"LR": "0.1$$"}, {"SEED": "7"})
    assert (found["LR"], found["SEED"]) == ("0.1$$", "7")


def test_the_command_line_comes_before_the_environment() -> None:
    assert environment({"LR": "0.1"}, {"LR": "0.2", "SEED": "7"})["LR"] == "0.1"


def test_one_that_nobody_gives_is_still_told() -> None:
    with pytest.raises(BadTask, match="SEED is not set here"):
        environment({"LR": "0.1"}, {})


# What Linux gives a process with `LR=`, its value and the byte that ends it: 32 pages.
MOST = 32 * 4096 - len("LR=") - 1


def test_a_value_that_no_process_can_have_is_refused() -> None:
    full = {**os.environ, "LR": "x" * MOST}
    assert subprocess.run(["/bin/true"], env=full, check=False).returncode == 0
    assert environment({"SEED": "7"}, {"LR": "x" * MOST})["LR"] == "x" * MOST
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true"], env={**full, "LR": "x" * MOST + "x"}, check=False)
    for value in ("x" * MOST + "x", "ä" * (MOST // 2 + 1), "${{x" + "$" * MOST):
        with pytest.raises(BadTask, match=r"LR is too large: 131,07\d bytes") as caught:
            environment({"SEED": "7"}, {"LR": value})
        assert (caught.value.code, caught.value.path) == ("ORCH421", "env.LR")
    with pytest.raises(BadTask, match="LR of `--env` is too large"):
        environment({"SEED": "7", "LR": "x" * MOST + "x"}, {})


@pytest.mark.parametrize("given", ["A B=1", "X\n=1", "$(id)=1", "-x=1", "=1", "A=\0"])
def test_what_is_no_variable_is_refused_on_the_command_line(given: str, tmp_path: Path) -> None:
    path = tmp_path / "task.yml"
    path.write_text("type: task\ncommands: [a]\n")
    said = CliRunner().invoke(app, ["run", str(path), "--env", given])
    assert said.exit_code == 2, said.output


@pytest.mark.parametrize("name", ["FOO\n", "FOO\nBAR", "", "1A", "A-B", "\nFOO", "FÖO"])
def test_a_name_is_one_word(name: str) -> None:
    assert not is_name(name)
