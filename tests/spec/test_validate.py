"""`orch validate`: exit codes and both forms of output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orch.cli.validate import Format, command, validate

HERE = Path(__file__).parent


def test_a_valid_file_exits_0_and_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([str(HERE / "good" / "quickstart.yml")]) == 0
    assert capsys.readouterr() == ("2 valid documents\n", "")


def test_mistakes_exit_3_and_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(HERE / "bad" / "unknown-property.yml")
    assert validate([file]) == 3
    out, err = capsys.readouterr()
    assert out == "0 valid documents, 1 error\n"
    assert err == (
        f"{file}:3:1: error ORCH110: unknown property 'placment' in a fleet\n"
        "  3 | placment: cluster\n"
        "    | ^^^^^^^^\n"
        "  hint: did you mean 'placement'?\n"
    )


def test_warnings_exit_0_unless_strict(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(HERE / "bad" / "nodes-unbounded.yml")
    assert validate([file]) == 0
    assert "warning ORCH192" in capsys.readouterr().err
    assert validate([file], strict=True) == 3
    assert "error ORCH192" in capsys.readouterr().err


def test_what_a_launch_refuses_is_a_warning_and_with_strict_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "task.yml"
    file.write_text("type: task\nname: sweep\ncommands: [hostname]\npreempt: never\nsingleton: true\n")
    assert validate([str(file)]) == 0
    out, err = capsys.readouterr()
    assert out == "1 valid document, 2 warnings\n"
    assert f"{file}:4:1: warning ORCH118: `preempt` is not supported by this version\n" in err
    assert validate([str(file)], strict=True) == 3
    assert "error ORCH118: `singleton` is not supported by this version" in capsys.readouterr().err


def test_a_backend_in_a_file_of_its_own_is_only_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([str(HERE / "bad" / "type-backend.yml")]) == 0
    assert "ORCH118" not in capsys.readouterr().err


def test_names_that_the_catalogue_does_not_know_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yml"
    file.write_text(
        "type: fleet\nname: lab\nnodes: 2\nbackends: [aws]\nregions: [us-esat-1]\nresources: {gpu: H10:8}\n"
    )
    assert validate([str(file)]) == 0
    err = capsys.readouterr().err
    assert f"{file}:5:11: warning ORCH205: no offer is in a region 'us-esat-1'\n" in err
    assert f"{file}:6:18: warning ORCH203: the catalogue has no GPU 'H10'\n" in err
    assert err.count("did you mean") == 2


def test_names_of_a_cluster_are_not_looked_for_in_the_catalogue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yml"
    file.write_text(
        "type: fleet\nname: lab\nnodes: 0..2\nbackends: [kubernetes]\nregions: [prod]\n"
        "instance_types: [p5.48xlarge]\nresources: {gpu: H100:8}\n"
    )
    assert validate([str(file)]) == 0
    err = capsys.readouterr().err
    assert "ORCH202" not in err
    assert "ORCH205" not in err


def test_folders_in_a_folder_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("fleet.yml", "aws/p5.yml", "aws/spot/p5.yml", ".github/task.yml", "charts/values.yml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("type: fleet\nname: lab\nnodes: 2\n" if "values" not in name else "replicas: 2\n")
    assert validate([str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == "1 valid document\n"
    named = f"{tmp_path}/aws {tmp_path}/aws/spot"
    assert err == f"note: folders in a folder are not read; configurations are in {named}\n"
    assert validate([str(tmp_path / "aws" / "spot")]) == 0
    assert capsys.readouterr().err == ""
    validate([str(tmp_path), str(tmp_path / "aws")])
    assert f"configurations are in {tmp_path}/aws/spot\n" in capsys.readouterr().err
    assert validate([str(tmp_path)], Format.JSON) == 0
    assert capsys.readouterr().err == ""


def test_json_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([str(HERE / "bad")], Format.JSON) == 3
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["schema"] == 1
    assert len(found["diagnostics"]) > 150


def test_the_verb_takes_files_and_options() -> None:
    app = typer.Typer()
    app.command("validate")(command)
    result = CliRunner().invoke(app, [str(HERE / "bad" / "unknown-property.yml"), "--format", "json"])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["diagnostics"][0]["code"] == "ORCH110"
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0


def test_two_hundred_files_are_checked_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(200):
        (tmp_path / f"fleet-{number}.yml").write_text("type: fleet\nnodes: 2\nplacement: cluster\n")
    assert validate([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "200 valid documents\n"


def test_github_gets_one_annotation_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(HERE / "bad" / "unknown-property.yml")
    assert validate([file, str(HERE / "bad" / "type-backend.yml")], Format.GITHUB) == 3
    out, err = capsys.readouterr()
    notice, error = out.splitlines()
    place = Path(file).relative_to(HERE.parents[1])
    assert notice.startswith("::notice file=")
    assert error == (
        f"::error file={place},line=3,col=1,endLine=3,endColumn=9,title=ORCH110::"
        "unknown property 'placment' in a fleet%0Ahint: did you mean 'placement'?"
    )
    assert err == "1 valid document, 1 error\n"


def test_sarif_places_the_mistake_and_carries_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    file = HERE / "bad" / "unknown-property.yml"
    assert validate([str(file)], Format.SARIF) == 3
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    (result,) = run["results"]
    region = {"startLine": 3, "startColumn": 1, "endLine": 3, "endColumn": 9}
    place = {"artifactLocation": {"uri": str(file.relative_to(HERE.parents[1]))}, "region": region}
    assert (result["ruleId"], result["level"]) == ("ORCH110", "error")
    assert result["locations"] == [{"physicalLocation": place}]
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"] == [{"deletedRegion": region, "insertedContent": {"text": "placement"}}]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["ORCH110"]


def test_sarif_of_every_mistake_has_regions_that_a_reader_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([str(HERE / "bad")], Format.SARIF) == 3
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert len(run["results"]) > 200
    for result in run["results"]:
        region = result["locations"][0]["physicalLocation"]["region"]
        assert 1 <= region["startLine"] <= region["endLine"]
        assert region["endColumn"] >= (
            region["startColumn"] if region["startLine"] == region["endLine"] else 1
        )


@pytest.mark.parametrize("format", Format)
def test_every_format_says_nothing_wrong_of_a_good_file(format: Format) -> None:
    assert validate([str(HERE / "good" / "quickstart.yml")], format) == 0
