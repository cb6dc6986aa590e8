"""A rehearsal beside a real project, and what keeps the two apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from kit.support import ROOT

from orch.catalog.errors import NoSdk
from orch.components.accounts import REHEARSED
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.project import forget, rehearse
from orch.spec.errors import ExitCode
from orch.stacks.engine import install as engines
from orch.stacks.engine.shims import refuse_shims
from orch.stacks.errors import ProjectError
from orch.stacks.project.project import Project, find


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "orch.yml").write_text(
        "project: tests\nstate: s3://somewhere/else\nsecrets_provider: awskms://x\n"
    )
    return find(tmp_path)


def test_a_rehearsal_has_a_state_a_ledger_and_a_cloud_of_its_own(project: Project) -> None:
    made = rehearse(project, nodes=False)
    folder = project.root / ".orch" / "rehearsal"
    assert made.project.state_url == f"file://{folder}/state"
    assert made.project.secrets_provider is None
    assert str(folder) in made.project.ledger_url
    assert made.project.dot == folder
    assert made.project.name == project.name
    assert made.cloud.path == folder / "aws.db"
    assert not (project.root / ".orch" / "state").exists()
    assert (project.root / ".orch" / ".gitignore").read_text() == "*\n"


def test_the_account_stays_from_one_call_to_the_next_and_goes_when_forgotten(project: Project) -> None:
    made = rehearse(project, nodes=False)
    vpc = made.cloud.call("CreateVpc", {"CidrBlock": "10.0.0.0/16"})["Vpc"]["VpcId"]
    again = rehearse(project, nodes=False)
    assert vpc in again.cloud.things("vpc")
    assert again.session().client("ec2").describe_vpcs(VpcIds=[vpc])["Vpcs"]
    forget(project)
    assert vpc not in rehearse(project, nodes=False).cloud.things("vpc")


def test_another_account_sees_nothing_of_the_first_and_back_again_all_is_there(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(REHEARSED, raising=False)
    first = rehearse(project, nodes=False)
    vpc = first.cloud.call("CreateVpc", {"CidrBlock": "10.0.0.0/16"})["Vpc"]["VpcId"]

    monkeypatch.setenv(REHEARSED, "dev")
    other = rehearse(project, nodes=False)
    ec2 = other.session().client("ec2")
    with pytest.raises(ClientError, match=r"InvalidVpcID\.NotFound"):
        ec2.describe_vpcs(VpcIds=[vpc])
    theirs = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]
    owner = other.session().client("sts").get_caller_identity()["Account"]
    assert theirs["VpcId"] != vpc
    assert theirs["OwnerId"] == owner != first.session().client("sts").get_caller_identity()["Account"]
    # The provider of the engine is given the same account as the command.
    variables = other.project.environment(engines.Engine(Path("/opt/pulumi"), "3.0.0", "PATH"))
    assert variables["ORCH_REHEARSAL_AWS"] == str(project.rehearsal_folder / "aws@dev.db")

    monkeypatch.delenv(REHEARSED)
    assert set(rehearse(project, nodes=False).cloud.everything()) == {vpc}
    forget(project)
    assert not project.rehearsal_folder.exists()


@pytest.mark.parametrize("name", ["../aws", "Dev", "a b", "x" * 21])
def test_a_name_that_is_none_of_an_account_is_refused(
    name: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REHEARSED, name)
    with pytest.raises(ProjectError) as refused:
        rehearse(project, nodes=False)
    assert refused.value.code == "ORCH302"


def test_knobs_come_from_the_projects_file(project: Project) -> None:
    folder = project.root / ".orch" / "rehearsal"
    folder.mkdir(parents=True)
    (folder / "knobs.yml").write_text("quotas: {L-417A185B: 0}\nnodes: null\n")
    assert rehearse(project).cloud.knobs.quotas == {"L-417A185B": 0}
    assert rehearse(project).cloud.knobs.nodes is None
    forget(project)
    folder.mkdir(parents=True)
    (folder / "knobs.yml").write_text("quota: {}\n")
    with pytest.raises(ProjectError, match="knobs are not valid"):
        rehearse(project)
    (folder / "knobs.yml").write_text("quotas: [\n")
    with pytest.raises(ProjectError, match="knobs cannot be read") as wrong:
        rehearse(project)
    assert wrong.value.where == str(folder / "knobs.yml")


def test_a_new_rehearsal_has_local_nodes_unless_told_otherwise(project: Project) -> None:
    assert rehearse(project).cloud.knobs.nodes is not None


@pytest.mark.usefixtures("engine")
def test_what_is_real_refuses_a_simulated_provider(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rehearse(project, nodes=False)
    environment = made.project.environment(engines.require())
    with pytest.raises(ProjectError, match="simulated cloud is set"):
        refuse_shims(environment)
    with pytest.raises(ProjectError, match="simulated provider is on PATH") as caught:
        refuse_shims({"PATH": environment["PATH"]})
    assert caught.value.where == str(made.project.shims / "pulumi-resource-aws")
    refuse_shims({"PATH": os.environ["PATH"]})
    monkeypatch.setenv("ORCH_REHEARSAL_AWS", "x")
    with pytest.raises(ProjectError):
        refuse_shims({"PATH": os.environ["PATH"]})


def test_the_account_is_readable_by_its_owner_only(project: Project) -> None:
    made = rehearse(project, nodes=False)
    assert made.cloud.path.stat().st_mode & 0o077 == 0
    with pytest.raises(AwsError):
        made.cloud.call("DescribeVpcs", {"VpcIds": ["vpc-00000000000000000"]})


def test_without_the_clouds_sdk_it_says_what_to_install(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(NoSdk) as caught:
        rehearse(project).project.session("aws")
    assert (caught.value.code, caught.value.exit_code) == ("ORCH306", ExitCode.CONFIG)
    assert ".[aws]" in (caught.value.hint or "")


PLANS = """\
import sys
from pathlib import Path
from orch.components.registry.planning import compile_fleet
from orch.components.request import PlanRequest, PriorState
from orch.rehearsal.project import rehearse
from orch.spec.models import Fleet
from orch.stacks.project.project import find

made = rehearse(find(Path(sys.argv[1])), nodes=False).project
fleet = Fleet.model_validate({"type": "fleet", "name": "p5", "backends": ["aws"], "nodes": "2",
                              "regions": ["us-east-1"], "instance_types": ["p5.48xlarge"]})
here = Path(sys.argv[1])
request = PlanRequest(fleet, (), PriorState(), "abc123", root=here, folder=here, created=1,
                      session=made.session)
assert compile_fleet(request).nodes == ("p5-0", "p5-1")
print(*(name for name in sys.modules if name.startswith(("orch.components.", "orch.rehearsal."))))
"""


def test_a_rehearsed_fleet_of_aws_loads_no_other_cloud(project: Project) -> None:
    code = [sys.executable, "-c", PLANS, str(project.root)]
    loaded = subprocess.run(code, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert "orch.rehearsal.aws.account" in loaded
    others = {"crusoe", "gcp", "kubernetes", "lambda_", "nebius", "runpod"}
    # A simulator's own `__init__` registers it, and has nothing else.
    assert not [name for name in loaded if name.count(".") > 2 and name.split(".")[2] in others]
