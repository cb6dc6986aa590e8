"""Plans without the key of the state: the real engine, rehearsed clouds, another passphrase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import H200, LAMBDA_H100
from kit.support import Folder

from orch.spec.models import Fleet
from orch.stacks.events.masking import SECRET_MARK
from orch.stacks.pulumi.keyless import (
    PLACEHOLDER,
    findings_of,
    secret_inputs,
    without_drift_of_secrets,
    without_secrets,
)

SECRET = "hunter2-hunter2-hunter2"
RIGHT, WRONG = {"PULUMI_CONFIG_PASSPHRASE": "right"}, {"PULUMI_CONFIG_PASSPHRASE": "another"}
INIT = 'init: [{run: echo hi, env: {TOK: "${{ secrets.TOKEN }}"}}]\n'
CASES = {
    "aws": "backends: [aws]\nresources: {gpu: L4:1}\n",
    "gcp": "backends: [gcp]\nresources: {gpu: L4:1}\n",
    "lambda": f"backends: [lambda]\ninstance_types: [{LAMBDA_H100}]\n",
    "crusoe": f"backends: [crusoe]\ninstance_types: [{H200}]\n",
    "nebius": "backends: [nebius]\nresources: {gpu: H100:8}\n",
}


def fleet(folder: Folder, case: str, nodes: int) -> None:
    (folder.path / "f.yml").write_text(f"type: fleet\nname: pool\nnodes: {nodes}\n{CASES[case]}{INIT}")


def plan(folder: Folder, *words: str, env: dict[str, str]) -> dict[str, Any]:
    said = folder.orch("preview", "f.yml", "--rehearse", "--json", *words, env=env)
    assert said.code == 0, said.err
    found = said.json
    return found[0] if isinstance(found, list) else found


def operations(data: dict[str, Any]) -> list[tuple[str, str, str]]:
    return sorted(
        (each["op"], each["type"], each["name"]) for each in data["changes"] if each["op"] != "same"
    )


@pytest.mark.usefixtures("engine")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_a_plan_without_the_key_is_the_one_with_it_and_writes_nothing(tmp_path: Path, case: str) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "orch.yml").write_text("project: tests\n")
    fleet(folder, case, 2)
    assert folder.orch("secret", "set", "TOKEN", SECRET, env=RIGHT).code == 0
    said = folder.orch("up", "f.yml", "--rehearse", "--yes", env=RIGHT)
    assert said.code == 0, said.err
    refused = folder.orch("preview", "f.yml", "--rehearse", env=WRONG)
    assert (refused.code, "ORCH354" in refused.err) == (5, True)
    state = tmp_path / ".orch/rehearsal/state"
    before = {each: each.read_bytes() for each in state.rglob("*") if each.is_file()}
    same = plan(folder, "--keyless", env=WRONG)
    assert operations(same) == []
    assert same["drift"] == []
    codes = [each["code"] for each in same["diagnostics"]]
    assert "ORCH470" in codes
    assert "ORCH232" not in codes
    fleet(folder, case, 3)
    with_key, without = plan(folder, env=RIGHT), plan(folder, "--keyless", env=WRONG)
    assert operations(without) == operations(with_key) != []
    assert without["summary"] == with_key["summary"]
    assert SECRET not in json.dumps(without)
    assert {each: each.read_bytes() for each in state.rglob("*") if each.is_file()} == before
    assert not (tmp_path / ".orch/keys").exists()


@pytest.mark.usefixtures("engine")
def test_a_plan_that_is_applied_takes_the_key(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("preview", "f.yml", "--keyless", "--out", "plan.json")
    assert (said.code, "a plan that is applied is made with the key" in said.err) == (2, True)


def secret(text: str) -> dict[str, str]:
    return {SECRET_MARK: "1b47061264138c4ac30d75fd1eb44270", "ciphertext": text}


@pytest.mark.quick
def test_no_ciphertext_is_left_and_each_secret_input_has_its_path() -> None:
    urn = "urn:pulumi:p::t::orch:fleet:Aws$aws:ec2/instance:Instance::p-0"
    recorded = {
        "secrets_providers": {"type": "passphrase", "state": {"salt": "old"}},
        "resources": [
            {
                "urn": urn,
                "type": "aws:ec2/instance:Instance",
                "inputs": {"userData": secret("v1:a"), "init": [{"env": {"A-B": secret("v1:b"), "c": 1}}]},
                "outputs": {"metadata": {"user-data": secret("v1:c")}},
            }
        ],
    }
    text = without_secrets(recorded, "encryptionsalt: v1:new\n")
    assert "v1:a" not in text + text
    assert "ciphertext" not in text
    deployment = json.loads(text)["deployment"]
    assert deployment["secrets_providers"]["state"] == {"salt": "v1:new"}
    assert json.loads(deployment["resources"][0]["inputs"]["userData"]["plaintext"]) == PLACEHOLDER
    assert secret_inputs(recorded) == {
        ("aws:ec2/instance:Instance", "p-0"): ("userData", 'init[0].env["A-B"]'),
    }
    event = {
        "resOutputsEvent": {
            "metadata": {
                "old": {"outputs": {"metadata": {"user-data": "[secret]", "a": 1}}},
                "new": {"outputs": {"metadata": {"user-data": "real", "a": 2}}},
            }
        }
    }
    new = without_drift_of_secrets(event)["resOutputsEvent"]["metadata"]["new"]
    assert new["outputs"] == {"metadata": {"user-data": "[secret]", "a": 2}}


@pytest.mark.quick
def test_a_plan_of_existing_hosts_says_that_they_were_checked() -> None:
    hosts = Fleet.model_validate({"name": "lab", "ssh_config": {"hosts": ["gpu1"]}})
    (found,) = findings_of(hosts, ())
    assert (found.code, "hosts were checked" in found.summary) == ("ORCH470", True)
    (found,) = findings_of(Fleet.model_validate({"name": "pool"}), ())
    assert "no node was asked" in found.summary
