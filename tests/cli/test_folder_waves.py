"""A folder of fleets before the engine is asked: which order it has, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from kit.support import Folder, record_fleet

import orch.cli.maintenance.checks
from orch.cli.fleets.bring_up import in_own_process
from orch.cli.fleets.node_gates import Unhealthy, require_healthy
from orch.cli.fleets.prune import undescribed
from orch.runner.errors import RunnerError
from orch.runner.hosts.checks.types import CheckResult, HostReport, Result
from orch.runner.hosts.survey import Survey
from orch.runner.node_api.target import TargetError
from orch.spec.loader.load import Document, load_paths
from orch.stacks.errors import NoSuchFleet, ProjectError
from orch.stacks.plans.waves import Stack, in_waves, order_lines, refuse_missing
from orch.stacks.project.project import find

VOLUME = (
    "type: volume\nname: data\nbackend: aws\nregion: us-east-1\navailability_zone: us-east-1a\nsize: 10GB\n"
)


def fleet(name: str, more: str = "") -> str:
    return f"type: fleet\nname: {name}\nnodes: 1\nbackends: [local]\n{more}"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write("orch.yml", "project: lab\n")
    (tmp_path / "fleets").mkdir()
    return made


def documents(folder: Folder) -> tuple[Document, ...]:
    return load_paths([folder.path / "fleets"]).require().documents


def test_volumes_come_first_and_fleets_after_those_they_depend_on(folder: Folder) -> None:
    folder.write("fleets/a.yml", fleet("top", "depends_on: [base]\n"))
    folder.write("fleets/b.yml", fleet("base"))
    folder.write("fleets/c.yml", VOLUME)
    stacks = in_waves(find(folder.path), documents(folder))
    assert order_lines(stacks) == ["  1: volume data", "  2: fleet base", "  3: fleet top"]


def test_a_fleet_waits_for_one_that_is_up_already(folder: Folder) -> None:
    folder.write("fleets/a.yml", fleet("top", "depends_on: base\n"))
    stacks = in_waves(find(folder.path), documents(folder))
    with pytest.raises(NoSuchFleet) as refused:
        refuse_missing(stacks)
    assert refused.value.code == "ORCH396"
    assert refused.value.where is not None
    assert refused.value.where.endswith("fleets/a.yml:5:13")
    assert "depends on the fleet base, which is not up" in refused.value.summary
    record_fleet(folder, "base")
    refuse_missing(in_waves(find(folder.path), documents(folder)))


@pytest.mark.parametrize(
    ("yaml", "code", "place", "words"),
    [
        ("depends_on: [itself]\n", "ORCH175", "5:14", "these fleets wait for each other: itself -> itself"),
        ("depends_on: {a: b}\n", "ORCH112", "5:13", "this is a mapping, the name of a fleet"),
        ("depends_on: [Base]\n", "ORCH115", "5:14", "a name has only lower-case letters"),
        ("depends_on: [base, '']\n", "ORCH115", "5:20", "a name has at least 2 characters"),
    ],
)
def test_a_wrong_dependency_is_told_at_its_place(
    folder: Folder, yaml: str, code: str, place: str, words: str
) -> None:
    folder.write("fleets/a.yml", fleet("itself", yaml))
    said = folder.orch("validate", "fleets/a.yml")
    assert said.code == 3, said.err
    assert f"fleets/a.yml:{place}: error {code}: {words}" in said.out + said.err


def test_a_dependency_that_no_file_has_is_a_warning(folder: Folder) -> None:
    folder.write("fleets/a.yml", fleet("train", "depends_on: [bases]\n") + "---\n" + fleet("base"))
    said = folder.orch("validate", "fleets")
    assert said.code == 0
    assert "a.yml:5:14: warning ORCH174: no fleet 'bases' in these files" in said.out + said.err
    assert "did you mean 'base'?" in said.out + said.err


def report(name: str, result: Result) -> HostReport:
    check = CheckResult("docker.engine", result, "it does not answer", code="ORCH371")
    return HostReport(TargetError(0, name, "", RunnerError("x")), None, (check,))


def test_the_next_wave_does_not_begin_before_nodes_are_in_order(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("fleets/a.yml", fleet("top", "depends_on: base\n"))
    folder.write("fleets/b.yml", fleet("base"))
    stacks = in_waves(find(folder.path), documents(folder))
    results = {"base": Result.PASS}

    def survey_of(project: object, name: str) -> Survey:
        return Survey((report(f"{name}-0", results[name]),), None, ())

    monkeypatch.setattr(orch.cli.maintenance.checks, "survey_of", survey_of)
    require_healthy(stacks, 1, unfit=False)
    with pytest.raises(Unhealthy, match="the next wave does not begin"):
        require_healthy(stacks, 1, unfit=True)
    results["base"] = Result.FAIL
    with pytest.raises(Unhealthy) as refused:
        require_healthy(stacks, 1, unfit=False)
    assert refused.value.exit_code == 7
    assert refused.value.detail == "fleet base: base-0: docker.engine: it does not answer"


def recorded(folder: Folder, name: str, **more: Any) -> None:
    """What the engine would have recorded of a fleet that is up."""
    record_fleet(folder, name, resources=[{"type": "orch:fleet:Local", "urn": f"urn::{name}", **more}])


def test_what_no_file_of_the_project_describes_is_found(folder: Folder) -> None:
    (folder.path / "other").mkdir()
    folder.write("fleets/a.yml", fleet("here"))
    folder.write("other/b.yml", fleet("elsewhere"))
    folder.write("other/kept.yaml", "type: fleet\nname: longer\nnodes: 1\n")
    for name in ("here", "elsewhere", "longer", "gone"):
        recorded(folder, name)
    recorded(folder, "kept", protect=True)
    found = {each.name: each.protected for each in undescribed(find(folder.path))}
    assert found == {"gone": False, "kept": True}


def test_a_file_with_errors_keeps_all_that_is_up(folder: Folder) -> None:
    folder.write("fleets/a.yml", fleet("here"))
    folder.write("fleets/b.yml", fleet("there").replace("nodes: 1", "nodes: one"))
    folder.write("fleets/play.yml", "- hosts: fleet_here\n  tasks: []\n")
    recorded(folder, "here")
    assert undescribed(find(folder.path)) == ()
    recorded(folder, "there")
    with pytest.raises(ProjectError) as refused:
        undescribed(find(folder.path))
    assert refused.value.code == "ORCH398"
    assert refused.value.detail is not None
    assert "fleets/b.yml" in refused.value.detail


def test_a_file_that_cannot_be_read_keeps_all_that_is_up(folder: Folder) -> None:
    """What a link leads to may be on a disk that is not there now, and may describe the fleet."""
    folder.write("fleets/a.yml", fleet("here"))
    recorded(folder, "there")
    assert [each.name for each in undescribed(find(folder.path))] == ["there"]
    (folder.path / "fleets" / "b.yml").symlink_to("/nonexistent/b.yml")
    (folder.path / "fleets" / "c.yml").symlink_to("c.yml")
    with pytest.raises(ProjectError) as refused:
        undescribed(find(folder.path))
    assert refused.value.code == "ORCH398"
    assert refused.value.detail == "fleets/b.yml, fleets/c.yml"


def test_fleets_behind_a_link_and_in_utf_16_are_described(folder: Folder, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("shared")
    (elsewhere / "a.yml").write_text(fleet("shared"))
    (elsewhere / "loop").symlink_to(elsewhere)
    (folder.path / "fleets" / "prod").symlink_to(elsewhere)
    (folder.path / "fleets" / "up").symlink_to("..")
    (folder.path / "fleets" / "b.yml").write_bytes(fleet("wide").encode("utf-16"))
    for name in ("shared", "wide", "gone"):
        recorded(folder, name)
    assert [each.name for each in undescribed(find(folder.path))] == ["gone"]


def test_a_protected_fleet_refuses_before_anything_is_changed(folder: Folder) -> None:
    folder.write("fleets/a.yml", fleet("here"))
    recorded(folder, "kept", protect=True)
    said = folder.orch("up", "fleets", "--prune", "--yes")
    assert said.code == 5
    assert (
        "error ORCH348: no file describes the fleet kept, and it is protected: nothing was changed"
        in said.err
    )
    assert not (folder.path / ".orch" / "state" / ".pulumi" / "stacks" / "lab" / "here.json").exists()


def test_a_bug_with_one_stack_is_an_error_of_it(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("fleets/a.yml", fleet("here"))
    (stack,) = in_waves(find(folder.path), documents(folder))
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # which is given back

    def broken(_: Stack) -> bool:
        raise ValueError("a lost wheel")

    brought = in_own_process(broken, stack)
    assert brought.error is not None
    assert brought.error.summary == "this is a bug in orch: ValueError: a lost wheel"
    assert brought.error.exit_code == 1
    assert "the full trace is in " in (brought.error.hint or "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fleets/a.yml", "--prune", "--yes"), "it is for a folder"),
        (("fleets", "--parallel", "2"), "add --yes"),
        (("fleets", "--parallel", "0", "--yes"), "greater than or equal to 1"),
        (("fleets", "--plan", "plan.json", "--prune"), "it does not go with --plan"),
    ],
)
def test_options_that_do_not_go_together(folder: Folder, words: tuple[str, ...], told: str) -> None:
    folder.write("fleets/a.yml", fleet("here"))
    said = folder.orch("up", *words)
    assert said.code == 2
    assert told in " ".join(said.err.split())


def test_folders_in_a_folder_are_told_and_not_read(folder: Folder) -> None:
    (folder.path / "fleets" / "prod").mkdir()
    folder.write("fleets/prod/a.yml", fleet("deep"))
    folder.write("fleets/b.yml", fleet("top", "depends_on: nowhere\n"))
    said = folder.orch("up", "fleets", "--yes")
    assert said.code == 3
    assert "note: folders in a folder are not read; configurations are in fleets/prod\n" in said.err
