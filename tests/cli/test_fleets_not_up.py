"""Who names a fleet that is not up is told what is, and where the fleet is up instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.support import Folder, record_fleet

TASK = "type: task\nname: job\ncommands: [hostname]\n"
VERBS = {
    "down": ("down", "nothere", "--yes"),
    "delete": ("fleet", "delete", "nothere", "--yes"),
    "drift": ("drift", "nothere"),
    "refresh": ("refresh", "nothere"),
    "check": ("check", "nothere"),
    "show": ("fleet", "show", "nothere"),
    "unlock": ("unlock", "nothere", "--yes"),
    "run": ("run", "task.yml", "--fleet", "nothere"),
    "evacuate": ("fleet", "evacuate", "nothere", "--zone", "us-east-1a", "--yes"),
    "evacuate that is taken back": ("fleet", "evacuate", "nothere", "--zone", "us-east-1a", "--undo"),
    "rotate keys": ("rotate", "ssh-keys", "nothere", "--yes"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write("orch.yml", "project: lab\n")
    made.write("task.yml", TASK)
    return made


@pytest.mark.parametrize("verb", VERBS)
def test_the_fleets_that_are_up_are_named(folder: Folder, verb: str) -> None:
    record_fleet(folder, "laptop")
    said = folder.orch(*VERBS[verb])
    assert said.code == 3, said.err
    assert "error ORCH353: the fleet nothere is not up in this project" in said.err
    assert "up here: laptop" in said.err
    assert "name one that is up" in said.err


@pytest.mark.parametrize("verb", ["down", "delete"])
def test_nobody_is_told_to_bring_up_what_is_to_be_removed(folder: Folder, verb: str) -> None:
    said = folder.orch(*VERBS[verb])
    assert said.code == 3
    assert "the fleet nothere is not up in this project: there is nothing to remove" in said.err
    assert "bring it up" not in said.err
    assert "no fleet is up here" in said.err


def test_nobody_is_asked_whether_to_remove_what_is_not_there(folder: Folder) -> None:
    said = folder.orch("down", "nothere")
    assert said.code == 3
    assert "there is nothing to remove" in said.err
    assert "no terminal" not in said.err


@pytest.mark.parametrize("verb", VERBS)
def test_a_fleet_of_the_rehearsal_is_pointed_to(folder: Folder, verb: str) -> None:
    record_fleet(folder, "nothere", rehearsed=True)
    said = folder.orch(*VERBS[verb])
    assert said.code == 3, said.err
    assert "the fleet nothere is not up in this project" in said.err
    assert "hint: it is up in the rehearsal: add `--rehearse`\n" in said.err


def test_what_is_to_be_written_where_nobody_can_be_asked_stays_a_rehearsal(folder: Folder) -> None:
    for rehearsed, words in ((True, ["--rehearse"]), (False, [])):
        record_fleet(folder, "here", rehearsed=rehearsed)
        said = folder.orch("down", "here", *words)
        assert said.code == 2, said.err
        assert f"hint: write `{' '.join(['orch down here --yes', *words])}`\n" in said.err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_what_it_is_told_to_add(folder: Folder, verb: str) -> None:
    record_fleet(folder, "nothere")
    said = folder.orch(*VERBS[verb], "--rehearse")
    assert said.code == 3, said.err
    assert "hint: it is up outside the rehearsal: leave `--rehearse` out\n" in said.err


def test_a_mistyped_name_gets_a_guess(folder: Folder) -> None:
    record_fleet(folder, "nowhere")
    assert "hint: did you mean 'nowhere'?" in folder.orch(*VERBS["drift"]).err


def test_the_drift_of_a_folder_leaves_out_what_is_not_up(folder: Folder) -> None:
    (folder.path / "infra").mkdir()
    for name in ("one", "two"):
        folder.write(f"infra/{name}.yml", f"type: fleet\nname: {name}\nbackend: local\nnodes: 1\n")
    folder.write("infra/data.yml", "type: volume\nname: data\nbackend: local\nsize: 1GB\n")
    said = folder.orch("drift", "infra", "--json")
    assert (said.code, said.out) == (0, ""), said.err
    assert said.err.splitlines() == [
        "note: volume data is not up",
        "note: fleet one is not up",
        "note: fleet two is not up",
    ]
    assert folder.orch("drift", "infra/one.yml").code == 3


@pytest.mark.parametrize(
    "words", [("fleet", "evacuate", "lab", "--zone", "us-east-1a"), ("node", "drain", "lab-0")], ids=" ".join
)
def test_what_takes_back_at_once_takes_no_option_of_a_plan(folder: Folder, words: tuple[str, ...]) -> None:
    said = folder.orch(*words, "--undo", "--plan-only", "--json")
    assert said.code == 2, said.err
    assert "`--undo` goes without --plan-only and --json; nothing was changed" in said.err
