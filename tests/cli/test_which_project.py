"""Which project a command works in: what it says of it, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from kit.ledgers.oldrows import FLEET
from kit.support import Folder, record_fleet

from orch.spec.errors import ExitCode

CLOUD = """
type: fleet
name: cloud
backends: [aws]
regions: [us-east-1]
instance_types: [p5.48xlarge]
nodes: 1
"""


@pytest.fixture
def lab(tmp_path: Path) -> Folder:
    """A project with a folder of fleets in it."""
    folder = Folder(tmp_path / "lab")
    (folder.path / "fleets").mkdir(parents=True)
    folder.write("orch.yml", "project: lab\n")
    return folder


def below(folder: Folder, name: str = "fleets") -> Folder:
    return Folder(folder.path / name)


def bring_up(folder: Folder, name: str) -> None:
    """As if a fleet without nodes were up in the folder, recorded as the engine does."""
    fleet = FLEET.model_copy(update={"name": name, "nodes": ()}).model_dump(mode="json")
    resources = [{"urn": f"urn::{name}", "type": "pulumi:pulumi:Stack", "outputs": {"fleet": fleet}}]
    place = folder.path / ".orch" / "state" / ".pulumi" / "stacks" / "lab"
    place.mkdir(parents=True)
    (place / f"{name}.json").write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))


LISTS = [
    ("fleet", "list"),
    ("ps", "-a"),
    ("log",),
    ("volume", "list"),
    ("secret", "list"),
    ("cost",),
    ("runbook", "list"),
    ("runbook", "status"),
    ("health", "--history"),
    ("gc",),
    ("reconcile",),
]


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_a_command_in_another_folder_says_which_project_it_is(lab: Folder, words: tuple[str, ...]) -> None:
    line = f"project lab ({lab.path})\n"
    there, here = below(lab).orch(*words), lab.orch(*words)
    # No backend is named in this project, so `gc` cannot say that nothing is left.
    expected = ExitCode.PROVISION if words == ("gc",) else ExitCode.OK
    assert there.code == here.code == expected, there.err
    assert there.err.count(line) == 1
    assert line not in here.err
    assert "project lab (" not in there.out
    for said in (below(lab).orch(*words, "--json"), lab.orch(*words, "--json")):
        told = json.loads(said.out)
        assert told["project"] == {"name": "lab", "folder": str(lab.path)}


def test_so_does_one_with_a_file_elsewhere_and_in_a_rehearsal(lab: Folder) -> None:
    below(lab).write("cloud.yml", CLOUD)
    elsewhere = Folder(lab.path.parent)
    said = elsewhere.orch("preview", "lab/fleets/cloud.yml", "--rehearse", "--json")
    assert said.code == 0, said.err
    assert said.err.count(f"project lab ({lab.path})\n") == 1
    assert json.loads(said.out)["project"] == {"name": "lab", "folder": str(lab.path)}
    said = below(lab).orch("preview", ".", "--rehearse", "--review", "review")
    assert said.code == 0, said.err
    told = json.loads((lab.path / "fleets" / "review" / "review.json").read_text())
    assert told["project"] == {"name": "lab", "folder": str(lab.path)}
    assert "project" not in told["stacks"][0]
    # What was rehearsed stands in the project's own folder.
    assert not (lab.path / "fleets" / ".orch").exists()


def test_what_programs_read_stays_as_they_know_it(lab: Folder) -> None:
    inventory = below(lab).orch("inventory", "--list")
    assert (inventory.code, "project" in json.loads(inventory.out), inventory.err) == (0, False, "")
    environment = below(lab).orch("engine", "env")
    assert (environment.code, environment.err) == (0, "")
    assert all(line.startswith("export ") for line in environment.out.splitlines())
    below(lab).write("cloud.yml", CLOUD)
    assert "project lab" not in below(lab).orch("validate", "cloud.yml").err
    untrusted = below(lab).orch("preview", "cloud.yml", "--untrusted", "--json")
    assert (untrusted.code, "project" in json.loads(untrusted.out)) == (0, False)
    completed = below(lab).orch(
        env={"_ORCH_COMPLETE": "complete_bash", "COMP_WORDS": "orch show ", "COMP_CWORD": "2"}
    )
    assert "project" not in completed.out + completed.err


def test_an_orch_yml_above_a_folder_with_fleets_stops_every_command(tmp_path: Path) -> None:
    mine = Folder(tmp_path / "mine")
    mine.path.mkdir()
    bring_up(mine, "big")
    before = sorted(each for each in mine.path.rglob("*"))
    assert "big" in mine.orch("fleet", "list", "--json").out
    (tmp_path / "orch.yml").write_text("project: stray\n")
    mine.write("cloud.yml", CLOUD)
    for words in (
        ("fleet",),
        ("ps",),
        ("up", "cloud.yml", "--yes"),
        ("preview", "cloud.yml"),
        ("preview", "cloud.yml", "--rehearse"),
        ("down", "big", "--yes"),
        ("gc",),
        ("engine", "env"),
        ("secret", "list"),
    ):
        said = mine.orch(*words)
        assert said.code == 3, (words, said.err)
        assert f"error ORCH308: two projects claim this folder: {mine.path} and {tmp_path}" in said.err
        assert f"{mine.path}: its .orch records 1 stack (big)" in said.err
        assert said.out == ""
    doctor = mine.orch("doctor", "--json")
    assert "two projects claim this folder" in doctor.out
    # From the folder above, by the name of a file.
    above = Folder(tmp_path)
    assert above.orch("preview", "mine/cloud.yml").code == 3
    assert above.orch("fleet").code == 0
    # Nothing was made in either.
    assert not (tmp_path / ".orch" / "state" / ".pulumi" / "stacks").exists()
    assert set(before) <= set(mine.path.rglob("*"))
    # The way out that the message names.
    assert f"`orch init {mine.path}`" in said.err
    assert mine.orch("init", str(mine.path)).code == 0
    assert (mine.path / "orch.yml").read_text() == "project: lab\n"
    told = json.loads(mine.orch("fleet", "list", "--json").out)
    assert (told["project"]["name"], [each["name"] for each in told["fleets"]]) == ("lab", ["big"])
    assert above.orch("fleet").err.count("big") == 0


def test_a_checkout_that_is_made_above_changes_nothing(tmp_path: Path) -> None:
    mine = Folder(tmp_path / "mine")
    (mine.path / "jobs").mkdir(parents=True)
    bring_up(mine, "big")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    said = below(mine, "jobs").orch("fleet", "list", "--json")
    assert [each["name"] for each in json.loads(said.out)["fleets"]] == ["big"]
    assert f"project lab ({mine.path})" in said.err


def test_an_orch_yml_that_is_gone_and_said_where_the_state_is_is_missed(tmp_path: Path) -> None:
    mine = Folder(tmp_path)
    (tmp_path / "orch.yml").write_text(f"project: lab\nstate: file://{tmp_path}/shared\n")
    settings = tmp_path / ".orch" / "config" / "Pulumi.big.yaml"
    settings.parent.mkdir(parents=True, mode=0o700)
    settings.write_text("encryptionsalt: v1:x\n")
    assert "settings" not in mine.orch("fleet").err
    (tmp_path / "orch.yml").unlink()
    said = mine.orch("fleet")
    assert said.code == 0
    assert f"warning: big: their settings are in {tmp_path}/.orch, their state is not" in said.err
    bring_up(mine, "big")
    assert "settings" not in mine.orch("fleet").err


def test_a_rehearsal_that_is_no_longer_its_own_project_is_told(lab: Folder) -> None:
    record_fleet(below(lab), "tried", rehearsed=True)
    said = below(lab).orch("fleet", "--rehearse")
    assert said.code == 0, said.err
    assert f"note: {lab.path}/fleets has a rehearsal of its own" in said.err
    assert "rehearsal of its own" not in lab.orch("fleet", "--rehearse").err
    assert "rehearsal of its own" not in below(lab).orch("fleet").err


def test_a_file_that_a_link_leads_to_is_of_the_project_that_has_the_link(lab: Folder, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (lab.path / "shared").symlink_to(library)
    through = {**os.environ, "PWD": str(lab.path / "shared")}
    said = Folder(library).orch("fleet", "list", "--json", env=through)
    assert json.loads(said.out)["project"]["name"] == "lab"
    assert f"project lab ({lab.path})" in said.err
    said = Folder(library).orch("fleet", "list", "--json", env={"PWD": "/"})
    assert json.loads(said.out)["project"]["name"] == "library"
