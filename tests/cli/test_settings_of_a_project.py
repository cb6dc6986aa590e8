"""What `orch.yml` says for all documents reaches every verb that reads them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from kit.support import Folder

from orch.cli.fleets.preview_files import terms_of
from orch.stacks.project.project import find

SETTINGS = """\
project: tests
defaults:
  fleet:
    nodes: 2
    resources: {gpu: "H100:8"}
    regions: [us-east-1]
  task:
    singleton: true
profiles:
  - name: short
    max_duration: 5m
backends:
  - type: aws
"""
FLEET = "type: fleet\nname: lab\nbackends: [aws]\n"
TASK = "type: task\nname: train\ncommands: [echo hi]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "orch.yml").write_text(SETTINGS)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "fleet.yml").write_text(FLEET)
    (tmp_path / "train.yml").write_text(TASK)
    return Folder(tmp_path)


def test_validate_takes_what_the_project_says_as_written(folder: Folder) -> None:
    said = folder.orch("validate", "deep/fleet.yml")
    assert (said.code, said.out) == (0, "1 valid document\n"), said.err
    (folder.path / "orch.yml").write_text("project: tests\n")
    said = folder.orch("validate", "deep/fleet.yml")
    assert said.code == 3
    assert "a fleet needs `nodes`" in said.err


def test_offers_are_those_for_what_the_project_says(folder: Folder) -> None:
    said = folder.orch("offers", "deep/fleet.yml", "--json")
    assert said.code == 0, said.err
    (fleet,) = said.json["fleets"]
    assert {offer["instance_type"] for offer in fleet["offers"]} >= {"p5.48xlarge"}
    assert {offer["region"] for offer in fleet["offers"]} == {"us-east-1"}


def test_a_run_is_refused_at_the_place_of_a_default_that_nothing_acts_on(folder: Folder) -> None:
    said = folder.orch("run", "train.yml")
    assert said.code == 3
    assert "orch.yml:8:5: error ORCH118: `singleton` is not supported by this version" in said.err
    assert "the task at train.yml:1 takes it over from here" in said.err


@pytest.mark.parametrize("verb", ["run", "apply"])
def test_a_profile_that_is_not_there_is_refused(folder: Folder, verb: str) -> None:
    said = folder.orch(verb, "train.yml", "--profile", "shrt")
    assert said.code == 2
    assert "there is no profile 'shrt'" in said.err
    assert "did you mean 'short'?" in said.err
    (folder.path / "orch.yml").unlink()
    said = folder.orch(verb, "train.yml", "--profile", "short")
    assert said.code == 2
    assert "profiles stand in `orch.yml`" in said.err


def test_files_of_strangers_take_nothing_from_outside_their_repository(folder: Folder) -> None:
    repository = folder.path / "deep"
    (repository / ".git").mkdir()
    said = folder.orch("validate", "--untrusted", "deep/fleet.yml")
    assert said.code == 3
    assert "a fleet needs `nodes`" in said.err
    (repository / "orch.yml").symlink_to(folder.path / "orch.yml")
    assert folder.orch("validate", "--untrusted", "deep/fleet.yml").code == 3
    (repository / "orch.yml").unlink()
    (repository / "orch.yml").write_text("defaults: {fleet: {nodes: 2, env: ['A=${{ env.HOME }}']}}\n")
    said = folder.orch("validate", "--untrusted", "deep/fleet.yml")
    assert said.code == 3
    assert "deep/orch.yml:1:" in said.err, "a variable that nobody lent"
    assert "ORCH176" in said.err


def test_settings_that_cannot_be_read_are_told(folder: Folder) -> None:
    folder.write("orch.yml", "project: lab\ndefaults: {fleet: {nodes: 2}\n")
    folder.write("fleet.yml", "type: fleet\nname: lab\nbackend: local\nnodes: 1\n")
    said = folder.orch("validate", "fleet.yml")
    assert said.code == 0, said.err
    assert "orch.yml: this mapping opened with `{` is not closed as expected; its `defaults`" in said.err
    for nothing in ("project: lab\n", "# all of it later\n", ""):
        folder.write("orch.yml", nothing)
        assert "orch.yml" not in folder.orch("validate", "fleet.yml").err


@pytest.mark.parametrize("form", ["github", "sarif"])
def test_annotations_name_files_from_the_root_of_the_repository(folder: Folder, form: str) -> None:
    (folder.path / ".git").mkdir()
    (folder.path / "infra").mkdir()
    inner = Folder(folder.path / "infra")
    inner.write("orch.yml", "project: lab\ndefaults: {fleet: {nodes: many}}\n")
    inner.write("fleet.yml", "type: fleet\nname: lab\nbackend: local\n")
    said = inner.orch("validate", "fleet.yml", "--format", form)
    assert said.code == 3, said.err
    assert str(folder.path) not in said.out
    if form == "github":
        assert said.out.startswith("::error file=infra/orch.yml,line=2,")
    else:
        (found,) = said.json["runs"][0]["results"]
        uris = [each["physicalLocation"]["artifactLocation"]["uri"] for each in found["locations"]]
        assert uris == ["infra/orch.yml"]


def test_a_saved_plan_is_valid_as_long_as_the_project_says(folder: Folder, engine: None) -> None:
    def validity(expires_s: int | None = None) -> timedelta:
        terms = terms_of(find(folder.path), expires_s, [])
        return terms.expires - terms.made

    assert validity() == timedelta(hours=24)
    (folder.path / "orch.yml").write_text(f"{SETTINGS}saved_plan_duration: 90m\n")
    assert validity() == timedelta(minutes=90)
    assert validity(60) == timedelta(minutes=1)
    (folder.path / "orch.yml").write_text(f"{SETTINGS}saved_plan_duration: off\n")
    said = folder.orch("validate", "orch.yml")
    assert (said.code, "orch.yml:14:22: error ORCH124" in said.err) == (3, True), said.err
