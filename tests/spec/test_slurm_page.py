"""docs/migrate-from-slurm.md: what it shows as YAML, variables and commands is what this version has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orch.cli.verbs import VERBS
from orch.runner.plan.environment import SET_ON_NODE, RankNode, RunFacts, RunNodes, rank_environment
from orch.spec.loader.load import load_paths

PAGE = (Path(__file__).parents[2] / "docs" / "migrate-from-slurm.md").read_text("utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
LAUNCHERS = {"torchrun", "mpirun"}
OF_TORCHRUN = {"RANK", "LOCAL_RANK"}


def rows(heading: str) -> Iterator[list[str]]:
    """The rows of the table under a heading, each as its cells."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    for line in part.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


FRAGMENTS = [text for _, cell, *_ in rows("Options of `#SBATCH`") for text in spans(cell)]


def told(folder: Path, text: str, *, launch: bool) -> list[str]:
    for name in ("train.py", "requirements.txt", "job.sh"):
        (folder / name).write_text("")
    file = folder / "job.yml"
    file.write_text(text)
    return [
        f"{each.code} at {each.path}" for each in load_paths([file], environ={}, launch=launch).diagnostics
    ]


@pytest.mark.parametrize("text", BLOCKS)
def test_each_task_of_the_page_can_be_run(tmp_path: Path, text: str) -> None:
    assert told(tmp_path, text, launch=True) == []


@pytest.mark.parametrize("text", FRAGMENTS)
def test_each_option_has_properties_that_are_acted_on(tmp_path: Path, text: str) -> None:
    properties = yaml.safe_load(text)
    body = {} if LAUNCHERS & properties.keys() else {"commands": ["true"]}
    whole = {"type": "task", "files": ["train.py"], **body, **properties}
    found = told(tmp_path, yaml.safe_dump(whole, sort_keys=False), launch=True)
    assert found == []


def test_the_script_and_its_task_say_the_same() -> None:
    script = PAGE.partition("```bash\n")[2].partition("```")[0]
    task = yaml.safe_load(BLOCKS[0])
    assert f"--nodes={task['nodes']}\n" in script
    assert f"--job-name={task['name']}\n" in script
    assert f"--signal={task['signal']}\n" in script
    assert f"--cpus-per-task={task['resources']['cpu']}\n" in script
    assert f"train.py {task['torchrun'].partition(' ')[2]}\n" in script


def test_each_command_is_one_of_orch() -> None:
    verbs = {each.name for each in VERBS}
    named = [
        text.split()[1] for _, cell in rows("Commands") for text in spans(cell) if text.startswith("orch ")
    ]
    assert len(named) > 20
    assert set(named) <= verbs


def test_each_variable_is_set_in_a_rank() -> None:
    ranks = tuple(RankNode(f"n{index}", f"10.0.0.{index}", gpus=8, cpus=96.0) for index in range(2))
    nodes = RunNodes("n", ranks)
    run = RunFacts(1, "r", "f", "aws", nodes, slurm=True, ntasks_per_node=8, working_dir="/workflow")
    known = {*rank_environment(run, 1).values, *SET_ON_NODE, *OF_TORCHRUN}
    named = {text for row in rows("Variables") for cell in row[:2] for text in spans(cell)} - {"torchrun"}
    assert named - {"ntasks_per_node"} <= known
    slurm = {name for name in known if name.startswith("SLURM")}
    assert slurm <= named
