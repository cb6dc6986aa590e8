"""Policies in `orch preview` and `orch up`, through the real engine on a simulated account."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import Rehearsed, RehearsedGcp
from kit.support import ROOT, Said

from orch.stacks.engine import install

PLAIN = "project: tests\n"
# Commands of tests have a folder of their own in place of that of Python; packs are started by its name.
WITH_PYTHON = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
TYPE = {"instance_types": ["g6.xlarge"], "placement": "any"}


@pytest.fixture(scope="module")
def host() -> None:
    """An engine whose language host starts packs in Python."""
    install.install(lambda text: None)


def policies(there: Rehearsed, text: str) -> None:
    there.write("orch.yml", f"{PLAIN}{text}")


def names(said: Said) -> list[str]:
    return [each["name"] for each in said.json["policies"]]


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory, engine: None) -> Rehearsed:
    there: Rehearsed = Rehearsed.make(tmp_path_factory.mktemp("aws"))
    there.fleet(2, name="lab", **TYPE, network={"public_ips": True})
    return there


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_the_examples_keep_all_policies(tmp_path: Path, engine: None, cloud: str) -> None:
    there = (Rehearsed if cloud == "aws" else RehearsedGcp).make(tmp_path)
    file = "p5-cluster.yml" if cloud == "aws" else "cluster.yml"
    shutil.copy(ROOT / "examples" / cloud / file, tmp_path / file)
    text = (
        "policies:\n  ssh-open-to-world: mandatory\n  unencrypted-disk: mandatory\n  imdsv1: mandatory\n"
        "  missing-tags: {tags: [team]}\n  region-not-allowed: {regions: [us-*]}\n"
        "  type-not-allowed: {types: [p5.*, a3-*]}\n  public-node: mandatory\n  slow-cluster: mandatory\n"
        "tags: {team: research}\n"
    )
    policies(there, text)
    said = there.preview(file)
    assert said.code == 0, said.err
    assert said.json["policies"] == []
    assert "ORCH285" not in said.err


def test_an_advisory_violation_is_told_at_its_line_and_refuses_nothing(aws: Rehearsed) -> None:
    policies(aws, "")
    said = aws.preview("lab.yml")
    assert said.code == 0, said.err
    (found,) = said.json["policies"]
    line = (aws.path / "lab.yml").read_text().splitlines().index("network: {public_ips: true}") + 1
    assert found["message"].endswith("it gives a node a public address")
    assert (found["name"], found["level"], found["exempt"]) == ("public-node", "advisory", None)
    assert (found["file"], found["line"]) == ("lab.yml", line)
    assert found["urn"].startswith("urn:pulumi:lab::tests::")
    shown = aws.orch("preview", "lab.yml", "--rehearse")
    assert f"lab.yml:{line}:23: warning ORCH285: policy public-node" in shown.err


def test_a_mandatory_violation_ends_preview_and_up_with_4_and_changes_nothing(aws: Rehearsed) -> None:
    policies(aws, "policies: {public-node: mandatory, type-not-allowed: {types: [p5.*]}}\n")
    said = aws.preview("lab.yml")
    assert said.code == 4, said.err
    assert names(said) == ["type-not-allowed", "public-node"]
    said = aws.up("lab.yml")
    assert said.code == 4, said.err
    assert "error ORCH285: policy public-node" in said.err
    assert "error ORCH285: policy type-not-allowed" in said.err
    assert "the type g6.xlarge is none of p5.*" in said.err
    assert "write `network.public_ips: false`" in said.err
    assert aws.cloud.everything() == {}


def test_a_budget_counts_all_the_nodes_that_the_file_allows(aws: Rehearsed) -> None:
    policies(aws, "policies: {budget: {hourly: 10}}\n")
    aws.fleet("1..99", name="grows", **TYPE)
    for said in (aws.preview("grows.yml"), aws.up("grows.yml")):
        assert said.code == 4, said.err
        assert "with 99 nodes, $10.00 are allowed" in said.out + said.err
    assert aws.cloud.everything() == {}
    (aws.path / "grows.yml").unlink()


def test_an_exemption_is_shown_with_its_owner_until_it_is_over(aws: Rehearsed) -> None:
    text = (
        "policies:\n  public-node:\n    level: mandatory\n    exempt:\n"
        "      - {{path: lab.yml, owner: ada, reason: a demo, expires: {expires}}}\n"
    )
    policies(aws, text.format(expires="2099-01-31"))
    said = aws.preview("lab.yml")
    assert said.code == 0, said.err
    (found,) = said.json["policies"]
    assert found["exempt"] == {"owner": "ada", "reason": "a demo", "expires": "2099-01-31"}
    comment = aws.orch("preview", "lab.yml", "--rehearse", "--markdown")
    assert comment.code == 0, comment.err
    assert "exempt (ada until 2099-01-31: a demo)" in comment.out
    policies(aws, text.format(expires="2020-01-31"))
    said = aws.orch("preview", "lab.yml", "--rehearse")
    assert said.code == 4
    assert "the exemption of ada is over since 2020-01-31" in said.err


def test_findings_go_beside_the_plan_or_in_its_place(aws: Rehearsed) -> None:
    policies(aws, "policies: {public-node: mandatory}\n")
    words = ("preview", ".", "--rehearse", "--findings-format")
    said = aws.orch(*words, "gitlab")
    assert said.code == 4, said.err
    (found,) = [each for each in json.loads(said.out) if each["check_name"] == "public-node"]
    assert (found["severity"], found["location"]["path"].endswith("lab.yml")) == ("major", True)
    said = aws.orch(*words, "sarif", "--findings-out", "orch.sarif", "--markdown", "--out", "comment.md")
    assert (said.code, said.out) == (4, "")
    log = json.loads((aws.path / "orch.sarif").read_text())
    assert [each["ruleId"] for each in log["runs"][0]["results"]] == ["public-node"]
    assert "public-node" in (aws.path / "comment.md").read_text()
    said = aws.orch(*words, "github")
    assert said.out.startswith("::error file=")
    assert "title=public-node::policy public-node" in said.out
    assert aws.orch(*words, "github", "--json").code == 2


def test_the_pack_of_plain_pulumi_shows_the_same(aws: Rehearsed, host: None) -> None:
    text = (
        "policies:\n  public-node: mandatory\n  missing-tags: {level: advisory, tags: [team]}\n"
        "  type-not-allowed: {types: [p5.*], level: advisory}\n"
    )
    policies(aws, text)
    own = {(each["name"], each["level"]) for each in aws.preview("lab.yml").json["policies"]}
    assert own == {
        ("public-node", "mandatory"),
        ("missing-tags", "advisory"),
        ("type-not-allowed", "advisory"),
    }
    assert pulumi(aws, "stack", "select", "--create", "lab").code == 0
    said = pulumi(aws, "preview", "--stack", "lab", "--policy-pack", str(ROOT / "policies"))
    assert said.code != 0
    assert said_by_pack(said.out) == own, said.out + said.err
    policies(aws, "policies: {public-node: disabled}\n")
    said = pulumi(aws, "preview", "--stack", "lab", "--policy-pack", str(ROOT / "policies"))
    assert said.code == 0, said.out + said.err
    assert said_by_pack(said.out) == set()


def pulumi(there: Rehearsed, *words: str) -> Said:
    """Plain `pulumi` in the environment of `orch engine env --rehearse`, in the folder of a project."""
    assert there.orch("init").code == 0
    lines = there.orch("engine", "env", "--rehearse", env=WITH_PYTHON).out.splitlines()
    pairs = (shlex.split(line.removeprefix("export "))[0].partition("=") for line in lines)
    environment = {**os.environ, **{name: value for name, _, value in pairs}}
    engine = install.require().command
    command = [str(engine), "--non-interactive", *words, "--color", "never"]
    done = subprocess.run(
        command, cwd=there.path, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)


def said_by_pack(out: str) -> set[tuple[str, str]]:
    """Names and levels of the violations in the text of `pulumi preview`."""
    lines = re.findall(r"^\s+- \[(advisory|mandatory)\](?:\s+\[severity: \w+\])?\s+(\S+)", out, re.M)
    return {(name, level) for level, name in lines}


OWN_PACK = """
from concurrent import futures
import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import analyzer_pb2 as proto, analyzer_pb2_grpc, plugin_pb2


class Analyzer(analyzer_pb2_grpc.AnalyzerServicer):
    def GetAnalyzerInfo(self, request, context):
        info = proto.AnalyzerInfo(name="house", version="1.0.0")
        info.policies.append(proto.PolicyInfo(name="no-vpc", enforcementLevel=proto.MANDATORY))
        return info

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo(version="1.0.0")

    def Configure(self, request, context):
        return empty_pb2.Empty()

    def Analyze(self, request, context):
        found = []
        if request.type == "aws:ec2/vpc:Vpc":
            found = [proto.AnalyzeDiagnostic(policyName="no-vpc", policyPackName="house", urn=request.urn,
                policyPackVersion="1.0.0", message="networks are made by others",
                enforcementLevel=proto.MANDATORY)]
        return proto.AnalyzeResponse(diagnostics=found)

    def AnalyzeStack(self, request, context):
        return proto.AnalyzeResponse()

    def Remediate(self, request, context):
        return proto.RemediateResponse()


server = grpc.server(futures.ThreadPoolExecutor(2))
analyzer_pb2_grpc.add_AnalyzerServicer_to_server(Analyzer(), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


def test_a_pack_of_the_project_refuses_too(aws: Rehearsed, host: None) -> None:
    (aws.path / "house").mkdir()
    (aws.path / "house" / "PulumiPolicy.yaml").write_text("runtime: python\nversion: 1.0.0\n")
    (aws.path / "house" / "__main__.py").write_text(OWN_PACK)
    policies(aws, "policies: {public-node: disabled}\npolicy_packs: [house]\n")
    said = aws.orch("preview", "lab.yml", "--rehearse", "--json", env=WITH_PYTHON)
    assert said.code == 4, said.err
    (found,) = said.json["policies"]
    assert (found["name"], found["level"]) == ("house/no-vpc", "mandatory")
    assert "networks are made by others" in found["message"]
    assert said.json["summary"]["create"] > 5
    said = aws.orch("up", "lab.yml", "--yes", "--rehearse", env=WITH_PYTHON)
    assert said.code == 4, said.err
    assert "policy house/no-vpc" in said.err
    assert aws.cloud.everything() == {}


def test_what_goes_is_bounded_and_data_stays(tmp_path: Path, engine: None) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    there.fleet(2, name="lab", **TYPE)
    assert there.up("lab.yml").code == 0
    before = there.cloud.instances()
    policies(there, "policies: {replaced-nodes: {most: 1}}\n")
    there.fleet(2, name="lab", **TYPE, resources={"disk": "300GB"})
    for said in (there.preview("lab.yml"), there.up("lab.yml")):
        assert said.code == 4, said.err
        assert "2 nodes are deleted or replaced at once, 1 are allowed: lab-0, lab-1" in said.out + said.err
    assert there.cloud.instances() == before
    policies(there, "policies: {replaced-nodes: {most: 2}}\n")
    assert there.preview("lab.yml").code == 0


def test_a_volume_that_would_lose_its_data_is_refused(tmp_path: Path, engine: None) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    text = (
        "type: volume\nname: data\nbackend: aws\nregion: us-east-1\navailability_zone: {zone}\nsize: 100GB\n"
        "protect: false\n"
    )
    there.write("data.yml", text.format(zone="use1-az2"))
    policies(there, "policies: {data-loss: mandatory, unencrypted-disk: mandatory}\n")
    assert there.up("data.yml").code == 0
    before: Any = there.cloud.everything()
    there.write("data.yml", text.format(zone="use1-az4"))
    for said in (there.preview("data.yml"), there.up("data.yml")):
        assert said.code == 4, said.err
        assert "policy data-loss" in said.err
    assert there.cloud.everything() == before


def test_what_a_policy_says_no_finding_says_again(aws: Rehearsed) -> None:
    aws.fleet(
        2,
        name="open",
        **{**TYPE, "placement": "cluster"},
        network={"ssh_cidrs": ["0.0.0.0/0"], "bastion": False},
    )

    def told(text: str, code: int) -> tuple[list[str], list[str]]:
        """What the policies and the findings say of SSH and of the interconnect."""
        policies(aws, text)
        said = aws.preview("open.yml")
        assert said.code == code, said.err
        two = ("ssh-open-to-world", "slow-cluster", "ORCH223", "ORCH224")
        by_policy = [each["name"] for each in said.json["policies"] if each["name"] in two]
        return by_policy, [each["code"] for each in said.json["diagnostics"] if each["code"] in two]

    assert told("policies: {slow-cluster: disabled}\n", 0) == (["ssh-open-to-world"], ["ORCH223"])
    text = "policies: {ssh-open-to-world: disabled, slow-cluster: mandatory}\n"
    assert told(text, 4) == (["slow-cluster"], ["ORCH224"])
