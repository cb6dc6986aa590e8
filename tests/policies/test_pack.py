"""The policy pack as the language host starts it: a port on stdout, and answers over the protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import yaml
from google.protobuf import empty_pb2
from kit.support import ROOT
from pulumi.runtime.proto import analyzer_pb2 as proto
from pulumi.runtime.proto import analyzer_pb2_grpc

from orch import __version__

PACK = ROOT / "policies"
INSTANCE = "aws:ec2/instance:Instance"

ORCH_YML = """\
policies:
  public-node:
    level: mandatory
    exempt:
      - {resource: lab-1, path: fleets/lab.yml, owner: ada, reason: a demo, expires: 2099-01-01}
      - {resource: lab-2, owner: bob, reason: old, expires: 2020-01-01}
  imdsv1: disabled
  region-not-allowed: {regions: [eu-*]}
"""


@contextmanager
def pack(folder: Path) -> Iterator[Any]:
    words = [sys.executable, "-u", "-m", "pulumi.policy", "127.0.0.1:1", str(PACK)]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = analyzer_pb2_grpc.AnalyzerStub(channel)
            yield stub
            stub.Cancel(empty_pb2.Empty())
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()


def request(name: str, **inputs: Any) -> Any:
    made = proto.AnalyzeRequest(type=INSTANCE, name=name, urn=f"urn:pulumi:lab::p::{INSTANCE}::{name}")
    made.properties.update(inputs)
    made.provider.type = "pulumi:providers:aws"
    made.provider.properties.update({"region": "eu-west-1"})
    return made


PUBLIC = {"associatePublicIpAddress": True, "launchTemplate": {"id": "lt-1"}}


def test_the_pack_judges_by_the_projects_settings(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text(ORCH_YML)
    (tmp_path / "fleets").mkdir()
    (tmp_path / "fleets" / "lab.yml").write_text("type: fleet\nname: lab\nnodes: 3\n")
    with pack(tmp_path) as stub:
        info = stub.GetAnalyzerInfo(empty_pb2.Empty())
        stub.ConfigureStack(proto.AnalyzerStackConfigureRequest(stack="lab", project="p"))
        found = {
            index: [
                (each.policyName, each.enforcementLevel, each.message.splitlines()[0])
                for each in stub.Analyze(request(f"lab-{index}", **PUBLIC)).diagnostics
            ]
            for index in range(3)
        }
        here = stub.Analyze(request("lab-0", availabilityZone="us-east-1a", launchTemplate={"id": "x"}))
    levels = {each.name: each.enforcementLevel for each in info.policies}
    assert (levels["public-node"], levels["imdsv1"]) == (proto.MANDATORY, proto.DISABLED)
    assert "budget" not in levels
    said = "it gives a node a public address"
    assert found[0] == [("public-node", proto.MANDATORY, f"lab-0: {said}")]
    exempt = f"lab-1: {said} (exempt until 2099-01-01: ada, a demo)"
    assert found[1] == [("public-node", proto.ADVISORY, exempt)]
    over = f"lab-2: {said} (the exemption of bob is over since 2020-01-01)"
    assert found[2] == [("public-node", proto.MANDATORY, over)]
    (region,) = here.diagnostics
    assert region.message.startswith("lab-0: the region us-east-1 is none of eu-*")


def test_levels_and_parameters_of_the_command_line_go_first(tmp_path: Path) -> None:
    with pack(tmp_path) as stub:
        config = proto.PolicyConfig(enforcementLevel=proto.MANDATORY)
        config.properties.update({"port": 2222.0})
        stub.Configure(proto.ConfigureAnalyzerRequest(policyConfig={"ssh-open-to-world": config}))
        opened = proto.AnalyzeRequest(type="gcp:compute/firewall:Firewall", name="fw", urn="urn:fw")
        opened.properties.update({"sourceRanges": ["0.0.0.0/0"], "allows": [{"protocol": "tcp"}]})
        (told,) = stub.Analyze(opened).diagnostics
    assert (told.policyName, told.enforcementLevel) == ("ssh-open-to-world", proto.MANDATORY)
    assert told.message.startswith("fw: 0.0.0.0/0 lets the whole world knock at port 2222")


def test_a_pack_in_a_project_with_wrong_policies_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("policies: {imdsv2: mandatory}\n")
    words = [sys.executable, "-u", str(PACK), "127.0.0.1:1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "ORCH283" in done.stderr


def test_the_pack_has_the_version_of_orch() -> None:
    assert yaml.safe_load((PACK / "PulumiPolicy.yaml").read_text())["version"] == __version__
