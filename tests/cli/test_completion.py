"""What a shell completes, and `-f FILE` in place of FILE."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.support import Folder

from orch.cli import completion
from orch.cli.verbs import VERBS, Verb, load
from orch.runner.ledger.ledger import open_ledger
from orch.runner.plan.run_names import RunName

ASKED = {
    "bash": {"_ORCH_COMPLETE": "complete_bash", "COMP_WORDS": "{line}", "COMP_CWORD": "{number}"},
    "zsh": {"_ORCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "{line}"},
    "fish": {
        "_ORCH_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": "{line}",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    },
}

STACK = "pulumi:pulumi:Stack"


@pytest.fixture
def project(tmp_path: Path) -> Folder:
    """A project whose state and ledger know a fleet and a run."""
    (tmp_path / "orch.yml").write_text("project: mine\n")
    (tmp_path / "fleet.yml").write_text("type: fleet\nname: lab\nbackend: local\nnodes: 1\n")
    stacks = tmp_path / ".orch/state/.pulumi/stacks/mine"
    stacks.mkdir(parents=True)
    fleet = {"name": "lab", "nodes": [{"name": "lab-0"}, {"name": "lab-1"}]}
    urn = "urn:pulumi:lab::mine::"
    resources = [
        {"urn": f"{urn}{STACK}::mine-lab", "type": STACK, "outputs": {"fleet": fleet}},
        *({"urn": f"{urn}orch:local:Node::{name}", "type": "orch:local:Node"} for name in ("lab-0", "lab-1")),
    ]
    checkpoint = {"version": 3, "checkpoint": {"latest": {"resources": resources}}}
    (stacks / "lab.json").write_text(json.dumps(checkpoint))
    ledger = open_ledger(f"sqlite:///{tmp_path}/.orch/ledger.db")
    ledger.create(RunName.parse("train"), "lab", ["lab-0"], lambda number: "{}")
    ledger.close()
    return Folder(tmp_path)


def completed(project: Folder, shell: str, line: str) -> set[str]:
    words = {"line": line, "number": str(len(line.split()) - (0 if line.endswith(" ") else 1))}
    asked = {name: text.format(**words) for name, text in ASKED[shell].items()}
    said = project.orch(env=asked)
    assert said.err == ""
    rows = said.out.replace('"', "\n").splitlines() if shell == "zsh" else said.out.splitlines()
    return {row.partition("\t")[0].strip() for row in rows}


@pytest.mark.sqlite  # runs are completed from a file of this machine alone: no server is asked
@pytest.mark.parametrize("shell", ASKED)
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("orch down ", {"lab", "fleet.yml", "orch.yml"}),
        ("orch fleet show l", {"lab"}),
        ("orch show ", {"lab", "train"}),
        ("orch logs t", {"train"}),
        ("orch ssh lab", {"lab-0", "lab-1"}),
        ("orch run fleet.yml --fleet ", {"lab"}),
    ],
)
def test_names_of_the_project_are_completed(project: Folder, shell: str, line: str, names: set[str]) -> None:
    assert names <= completed(project, shell, line)


def test_where_there_is_no_project_nothing_is_completed_and_nothing_made(tmp_path: Path) -> None:
    assert completed(Folder(tmp_path), "bash", "orch logs ") <= {""}
    assert list(tmp_path.iterdir()) == []


def test_verbs_stand_under_headings_in_the_order_of_their_use(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("--help").out
    headings = ["Files", "Fleets and runs", "Fleets", "Runs", "Nodes", "This machine"]
    places = [said.index(f"─ {heading} ─") for heading in headings]
    assert places == sorted(places)
    assert "─ Commands ─" not in said


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_is_told_of_before_it_is_loaded_as_it_tells_of_itself(verb: Verb) -> None:
    """Lists of verbs load none of them."""
    told, loaded = verb.listed(), load(verb.name)
    first = " ".join(loaded.help.split("\n\n")[0].split())
    assert verb.help == first
    assert told.hidden == (not verb.heading)


@pytest.mark.parametrize(
    "words", [["-f", "fleet.yml"], ["--file", "fleet.yml"], ["--file=fleet.yml"], ["fleet.yml"]]
)
def test_a_file_may_be_written_as_an_option(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "fleet.yml").write_text("type: fleet\nname: lab\nbackend: local\nnodes: 1\n")
    said = Folder(tmp_path).orch("validate", *words)
    assert (said.code, said.err) == (0, "")
    # A group with verbs of its own takes it too; local nodes are no offer.
    assert "No such option" not in Folder(tmp_path).orch("offers", *words).err


def test_apply_refuses_what_no_document_of_the_file_could_take(tmp_path: Path) -> None:
    project = Folder(tmp_path)
    (tmp_path / "fleet.yml").write_text("type: fleet\nname: lab\nbackend: local\nnodes: 1\n")
    (tmp_path / "volume.yml").write_text("type: volume\nname: v\nbackend: aws\nregion: r\nsize: 1GB\n")
    assert project.orch("apply", "-f", "fleet.yml", "--name", "x").code == 2
    assert project.orch("apply", "-f", "volume.yml").code == 3
    assert project.orch("apply", "-").code == 2


def test_what_is_not_there_is_not_shown_and_what_is_is_named(project: Folder) -> None:
    said = project.orch("show", "nosuch")
    assert said.code == 3
    assert "neither a fleet nor a run of this project is named 'nosuch'" in said.err
    assert "fleets: lab; latest runs: train" in said.err


@pytest.mark.parametrize("word", ["~nosuchuser/", "/proc/self/environ/", "x" * 5000])
def test_what_is_no_folder_completes_nothing(word: str) -> None:
    assert completion.files_or_fleets(word) == []


def test_a_state_that_the_engine_would_have_to_read_completes_nothing(project: Folder) -> None:
    (state,) = (project.path / ".orch/state/.pulumi/stacks/mine").glob("*.json")
    state.rename(state.with_name("lab.json.gz"))
    assert "lab" not in completed(project, "bash", "orch fleet show l")
    assert not (project.path / ".orch/work").exists()


APPLIED = """\
type: fleet
name: lab
backend: local
nodes: 1
---
type: task
name: train
image: orch/mpi
commands: [echo hello]
"""


@pytest.mark.parametrize(
    ("more", "words", "code"),
    [
        ("singleton: true\n", (), "ORCH118"),
        ("env: [NOT_SET_HERE]\n", (), "ORCH173"),
        ("", ("--name", "BAD NAME!"), "ORCH115"),
        ("", ("--fleet", "nosuch"), "ORCH353"),
        ("files: [nosuch.py]\n", (), "nosuch.py"),
    ],
)
def test_apply_makes_nothing_for_a_task_that_cannot_start(
    tmp_path: Path, more: str, words: tuple[str, ...], code: str
) -> None:
    (tmp_path / "both.yml").write_text(APPLIED + more)
    said = Folder(tmp_path).orch("apply", "-f", "both.yml", "--yes", *words)
    assert said.code in (2, 3), said.err
    assert code in said.err
    assert not (tmp_path / ".orch/state/.pulumi/stacks").exists()


def test_a_file_that_is_not_written_after_its_option_is_a_wrong_command_line(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("preview", "-f")
    assert said.code == 2
    assert "a file is expected after it" in said.err
