"""Policies in `orch.yml`: names, levels, parameters and exemptions, each mistake at its line; and reports."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from orch.cli.validate import Format, validate
from orch.policies.plan_rules import PlanFacts
from orch.policies.rule import Resource
from orch.policies.settings import (
    RULES,
    Settings,
    Subject,
    Violation,
    finding_of,
    rule_texts,
    said_once,
    violations,
)
from orch.policies.task_verdicts import require_allowed
from orch.spec.diagnostics import Severity, render_gitlab, render_sarif
from orch.spec.findings import Finding
from orch.spec.loader.load import InvalidConfiguration, load_paths
from orch.spec.models.project import ProjectSettings
from orch.stacks.errors import ProjectError
from orch.stacks.project.project import find
from orch.stacks.provisioning.policies import pack_words

INSTANCE = "aws:ec2/instance:Instance"
PUBLIC = {"associatePublicIpAddress": True, "launchTemplate": {"id": "lt-1"}}
TODAY = date(2027, 1, 15)


def settings(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "orch.yml").write_text(text)
    ((_, model),) = load_paths([tmp_path / "orch.yml"], environ={}).require().of(ProjectSettings)
    return Settings(model.policies)


def judged(found: Settings, *names: str, file: str = "lab.yml", day: date = TODAY) -> tuple[Violation, ...]:
    breaches = [
        each
        for name in names
        for each in found.of_resource(
            Resource(INSTANCE, name, f"urn:pulumi:lab::p::{INSTANCE}::{name}", PUBLIC)
        )
        if each[0].rule.name == "public-node"
    ]
    return violations(breaches, Subject("lab", file, day))


def told(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], format: Format = Format.HUMAN) -> str:
    (tmp_path / "orch.yml").write_text(text)
    validate([str(tmp_path / "orch.yml")], format)
    done = capsys.readouterr()
    return done.err if format is Format.HUMAN else done.out


WRONG = """\
policies:
  public-nodes: mandatory
  budget: {hourly: much, dayly: 5}
  missing-tags: mandatory
  imdsv1: {anything: 1}
  unencrypted-disk:
    customer_key: perhaps
    exempt:
      - {owner: ada, reason: old, expires: 2027-01-31}
      - {fleet: lab, owner: ada, reason: old, expires: 2020-01-31}
  region-not-allowed:
    parameters: {regions: [{a: b}]}
"""


def test_each_mistake_is_told_at_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(tmp_path, WRONG, capsys)
    for words in (
        "orch.yml:2:3: error ORCH283: there is no policy 'public-nodes'",
        "hint: did you mean 'public-node'?",
        "orch.yml:3:20: error ORCH284: `hourly` of the policy budget",
        "orch.yml:3:26: error ORCH284: the policy budget has no parameter 'dayly'",
        "orch.yml:4:3: warning ORCH284: the policy missing-tags does nothing without a parameter",
        "orch.yml:5:12: error ORCH284: the policy imdsv1 has no parameter 'anything'",
        "hint: it has no parameters",
        "orch.yml:7:19: error ORCH284: `customer_key` of the policy unencrypted-disk",
        "orch.yml:9:9: error ORCH284: the exemption does not say what it is for",
        "orch.yml:10:56: warning ORCH284: the exemption of ada from unencrypted-disk is over since 2020",
        "orch.yml:12:27: error ORCH284: `regions` of the policy region-not-allowed",
    ):
        assert words in said, said


@pytest.mark.parametrize("missing", ["owner", "reason", "expires"])
def test_an_exemption_needs_an_owner_a_reason_and_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    rest = {"owner": "ada", "reason": "old", "expires": "2099-01-01"}
    words = ", ".join(f"{key}: {value}" for key, value in rest.items() if key != missing)
    said = told(tmp_path, f"policies:\n  imdsv1:\n    exempt:\n      - {{fleet: lab, {words}}}\n", capsys)
    assert f"orch.yml:4:9: error ORCH113: an exemption needs `{missing}`" in said


@pytest.mark.parametrize("written", ["20990101", "2099-1-1", "2099-W01-1", "2099-02-30", "soon"])
def test_an_exemption_ends_on_a_day(tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str) -> None:
    words = f"fleet: lab, owner: ada, reason: old, expires: '{written}'"
    said = told(tmp_path, f"policies:\n  imdsv1:\n    exempt:\n      - {{{words}}}\n", capsys)
    assert f"error ORCH112: '{written}' is no date" in said


def test_verbs_refuse_a_project_whose_policies_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("policies: {imdsv2: mandatory}\n")
    with pytest.raises(InvalidConfiguration, match="1 error in the configuration"):
        find(tmp_path)


def test_levels_and_parameters_of_the_project_hold(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        "policies:\n  public-node: mandatory\n  imdsv1: disabled\n"
        "  budget: {project_monthly: 10, level: advisory}\n",
    )
    assert (found.all["public-node"].level, found.all["imdsv1"].active) == ("mandatory", False)
    assert found.all["unencrypted-disk"].level == "advisory"
    assert found.refuses_by_engine
    (violation,) = violations(found.of_plan(PlanFacts(hourly=1.0)), Subject("lab", "lab.yml", TODAY))
    assert violation.message == "the project costs $730.00 a month, $10.00 are allowed"
    assert not violation.refuses


def test_without_policies_nothing_refuses_a_plan_and_no_engine_is_asked_for_it() -> None:
    found = Settings()
    assert not found.refuses_by_engine
    assert [each.rule.name for each in found.active(mandatory=True)] == []


EXEMPT = """\
policies:
  public-node:
    level: mandatory
    exempt:
      - {{{what}, owner: ada, reason: a demo, expires: {expires}}}
"""


@pytest.mark.parametrize(
    ("what", "exempt"),
    [
        ("resource: lab-0", True),
        ("resource: 'lab-*'", True),
        ("resource: '*::lab-0'", True),
        ("fleet: lab", True),
        ("path: '*.yml'", True),
        ("resource: lab-1", False),
        ("fleet: other", False),
        ("path: other.yml", False),
        ("fleet: lab, path: other.yml", False),
    ],
)
def test_an_exemption_covers_what_it_names(tmp_path: Path, what: str, exempt: bool) -> None:
    found = settings(tmp_path, EXEMPT.format(what=what, expires="2027-01-15"))
    (violation,) = judged(found, "lab-0")
    assert (violation.exempt is not None, violation.refuses) == (exempt, not exempt)


def test_an_exemption_ends_with_its_last_day_and_its_end_is_told(tmp_path: Path) -> None:
    found = settings(tmp_path, EXEMPT.format(what="fleet: lab", expires="2027-01-15"))
    (before,) = judged(found, "lab-0")
    assert finding_of(before).severity.value == "note"
    assert finding_of(before).detail == "ada answers for it until 2027-01-15: a demo"
    (after,) = judged(found, "lab-0", day=date(2027, 1, 16))
    assert after.refuses
    assert finding_of(after).detail == "the exemption of ada is over since 2027-01-15"


def test_the_same_violation_of_many_nodes_is_one_and_exempt_ones_stand_apart(tmp_path: Path) -> None:
    found = settings(tmp_path, EXEMPT.format(what="resource: lab-1", expires="2027-01-15"))
    said = judged(found, *(f"lab-{index}" for index in range(4)))
    assert sorted((each.resources, each.refuses) for each in said) == [
        ("lab-1", False),
        ("lab-[0,2-3]", True),
    ]


TASK = "type: task\nname: train\ncommands: [date]\nspot_policy: spot\n"


def test_validate_tells_what_policies_say_of_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yml").write_text(TASK)
    assert validate(["train.yml"]) == 0
    assert "train.yml:4:14: warning ORCH285: policy spot-without-checkpoint" in capsys.readouterr().err
    (tmp_path / "orch.yml").write_text("policies: {spot-without-checkpoint: mandatory}\n")
    assert validate(["train.yml"]) == 3
    assert "train.yml:4:14: error ORCH285" in capsys.readouterr().err
    (tmp_path / "orch.yml").write_text("policies: {spot-without-checkpoint: disabled}\n")
    assert validate(["train.yml"]) == 0
    assert "ORCH285" not in capsys.readouterr().err


def test_a_policy_speaks_in_the_place_of_a_finding_that_says_the_same(tmp_path: Path) -> None:
    slow = Finding(
        "ORCH223", "instance_types", "it is slow", hint="types with EFA: p5", severity=Severity.WARNING
    )
    other = Finding("ORCH209", "resources", "it is slow", severity=Severity.WARNING)
    facts = PlanFacts(slow=slow.summary)
    subject = Subject("lab", "lab.yml", TODAY)
    found, findings = said_once(violations(Settings().of_plan(facts), subject), (slow, other))
    assert findings == (other,)
    (said,) = map(finding_of, found)
    assert (said.path, said.summary) == ("instance_types", "policy slow-cluster: it is slow")
    assert said.hint is not None
    assert said.hint.startswith("types with EFA: p5; or exempt it")
    off = settings(tmp_path, "policies: {slow-cluster: disabled}\n")
    assert said_once(violations(off.of_plan(facts), subject), (slow, other)) == ((), (slow, other))


def test_a_task_that_a_policy_refuses_is_not_run_and_ends_with_4(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.yml").write_text(TASK)
    documents = load_paths([tmp_path / "train.yml"], environ={}).require().documents
    (told,) = require_allowed(documents, Settings(), str(tmp_path), TODAY)
    assert (told.code, told.severity) == ("ORCH285", Severity.WARNING)
    refusing = settings(tmp_path, "policies: {spot-without-checkpoint: mandatory}\n")
    with pytest.raises(InvalidConfiguration) as refused:
        require_allowed(documents, refusing, str(tmp_path), TODAY)
    assert refused.value.exit_code == 4
    assert "train.yml:4:14: error ORCH285" in refused.value.text()


def test_code_quality_has_a_mark_for_each_finding_and_a_severity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    report = json.loads(told(tmp_path, WRONG, capsys, Format.GITLAB))
    marks = [each["fingerprint"] for each in report]
    assert len(marks) == len(set(marks)) > 7
    assert {each["severity"] for each in report} == {"critical", "minor"}
    first = report[0]
    assert (first["location"]["path"], first["location"]["lines"]["begin"]) == ("orch.yml", 2)
    assert set(first) == {"description", "check_name", "fingerprint", "severity", "location"}
    # Lines above it do not change its mark, and the same words twice have two.
    moved = json.loads(told(tmp_path, f"project: lab\n{WRONG}", capsys, Format.GITLAB))
    assert [each["fingerprint"] for each in moved] == marks


def test_reports_name_the_policy_and_how_grave_it_is(tmp_path: Path) -> None:
    (tmp_path / "lab.yml").write_text("type: fleet\nname: lab\nnodes: 1\n")
    (document,) = load_paths([tmp_path / "lab.yml"], environ={}).require().documents
    (violation,) = judged(settings(tmp_path, "policies: {public-node: mandatory}\n"), "lab-0")
    from dataclasses import replace

    placed = finding_of(violation).placed(document)
    named = [replace(placed, code=violation.rule.name)] * 2
    (row,) = json.loads(render_gitlab(named, tmp_path, rule_texts()))
    assert (row["check_name"], row["severity"]) == ("public-node", "major")
    log = json.loads(render_sarif(named, tmp_path, rule_texts()))
    (rule,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert rule["shortDescription"]["text"] == RULES["public-node"].description
    assert rule["helpUri"].startswith("https://")
    (result,) = log["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("public-node", "error")
    assert len(result["partialFingerprints"]["orchFinding/v1"]) == 64


@pytest.mark.parametrize("port", ["0", "65536", "-22"])
def test_a_port_that_no_machine_has_is_no_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    text = f"policies: {{ssh-open-to-world: {{level: mandatory, port: {port}}}}}\n"
    assert "orch.yml:1:56: error ORCH284: `port` of the policy ssh-open-to-world" in told(
        tmp_path, text, capsys
    )


@pytest.mark.parametrize("pack", ["house", "orch.yml", "empty"])
def test_a_policy_pack_that_is_none_is_told_before_the_engine_starts(tmp_path: Path, pack: str) -> None:
    (tmp_path / "orch.yml").write_text(f"project: lab\npolicy_packs: [{pack}]\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProjectError) as refused:
        pack_words(find(tmp_path))
    assert refused.value.exit_code == 3
    text = refused.value.text()
    assert f"{tmp_path / 'orch.yml'}: error ORCH302: '{pack}' of `policy_packs` is no policy pack" in text
    assert str(tmp_path / pack / "PulumiPolicy.yaml") in text


def test_a_policy_pack_counts_from_the_folder_of_orch_yml(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: lab\npolicy_packs: [house]\n")
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "PulumiPolicy.yaml").write_text("runtime: python\n")
    assert pack_words(find(tmp_path)) == ["--policy-pack", str(tmp_path / "house")]


@pytest.mark.parametrize(
    "text", ["region-not-allowed: {regions: []}", "missing-tags: {tags: []}", "budget: {hourly: }"]
)
def test_a_policy_with_nothing_in_its_parameter_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    name = text.partition(":")[0]
    assert f"orch.yml:1:12: warning ORCH284: the policy {name} does nothing" in told(
        tmp_path, f"policies: {{{text}}}\n", capsys
    )
