"""A first plan of a fleet tells of nodes of its name that another state has made, as the account has them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch.components.marks.marked import MarkedResource
from orch.rehearsal.project import RehearsalProject, rehearse
from orch.spec.diagnostics import Severity
from orch.spec.models import Fleet, Volume
from orch.stacks.errors import Conflict
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import find, scope_of
from orch.stacks.provisioning.other_states import is_node, other_fleets, other_volumes, refuse_other_fleets
from orch.stacks.record.volumes import stack_of
from orch.stacks.saved_plans.applying import fleet_agreed, volume_agreed
from orch.stacks.stack.state import StackState
from orch.stacks.volumes.operations import up_volume

FLEET = Fleet.model_validate(
    {
        "name": "train",
        "backends": ["aws"],
        "regions": ["us-east-1"],
        "instance_types": ["g6.xlarge"],
        "nodes": 1,
    }
)
VOLUME = Volume.model_validate({"name": "data", "backend": "aws", "region": "us-east-1", "size": "10GB"})
INSTANCE = "aws:ec2/instance:Instance"


@pytest.fixture
def project(tmp_path: Path) -> RehearsalProject:
    (tmp_path / "orch.yml").write_text("project: infra\n")
    return rehearse(find(tmp_path), nodes=False).project


def run(project: RehearsalProject, mark: str) -> None:
    """A node of the fleet, of whatever state."""
    cloud: Any = project.cloud("aws")
    vpc = cloud.call("CreateVpc", {"CidrBlock": "10.0.0.0/16"})["Vpc"]["VpcId"]
    subnet = cloud.call("CreateSubnet", {"VpcId": vpc, "CidrBlock": "10.0.0.0/24"})["Subnet"]["SubnetId"]
    tags = {"orch:stack": mark, "orch:urn": f"{INSTANCE}::train-0"}
    words = [{"Key": key, "Value": value} for key, value in tags.items()]
    cloud.call(
        "RunInstances",
        {
            "ImageId": cloud.call("DescribeImages", {})["Images"][0]["ImageId"],
            "InstanceType": "g6.xlarge",
            "MinCount": 1,
            "MaxCount": 1,
            "SubnetId": subnet,
            "TagSpecifications": [{"ResourceType": "instance", "Tags": words}],
        },
    )


def findings(project: RehearsalProject) -> Any:
    return other_fleets(StackState(project, "train"), FLEET, lambda _: None)


def test_what_another_state_has_made_is_told_and_is_not_made_again_without_a_word(
    project: RehearsalProject,
) -> None:
    run(project, "infra/train/ffffff")
    (found,) = findings(project)
    assert (found.code, found.severity) == ("ORCH434", Severity.WARNING)
    assert found.summary == "another state of the project infra has made a fleet train"
    assert "1 node at aws us-east-1; $" in found.detail
    assert "mark infra/train/ffffff" in found.detail
    with pytest.raises(Conflict, match="another state") as raised:
        refuse_other_fleets([found])
    assert "`--make-another`" in raised.value.text()


def test_a_state_of_the_folder_that_orch_yml_no_longer_names_is_named(project: RehearsalProject) -> None:
    own = f"file://{project.root / '.orch' / 'state'}"
    run(project, f"infra/train/{scope_of(replace(project, state_url=own))}")
    (found,) = findings(project)
    assert f"of the state {own}" in found.detail


def test_a_lost_state_of_this_folder_is_told_as_lost(project: RehearsalProject) -> None:
    run(project, f"infra/train/{scope_of(project)}")
    (found,) = findings(project)
    assert "its state here does not record them" in found.summary
    assert "`orch state import`" in found.hint


def test_what_is_of_other_projects_and_fleets_is_nobody_s_matter(project: RehearsalProject) -> None:
    run(project, "other/train/ffffff")
    run(project, "infra/serve/ffffff")
    assert findings(project) == ()


def test_where_the_cloud_does_not_tell_nobody_makes_a_fleet_unasked(project: RehearsalProject) -> None:
    run(project, "infra/train/ffffff")
    project.cloud("aws").turn(denied=["DescribeTags"])
    (found,) = findings(project)
    assert (found.code, found.severity) == ("ORCH434", Severity.NOTE)
    refuse_other_fleets([found], asked=True)
    with pytest.raises(Conflict, match="is not known") as raised:
        refuse_other_fleets([found])
    assert (raised.value.code, "`--make-another`" in raised.value.text()) == ("ORCH434", True)


def test_a_stack_that_a_lease_or_a_saved_plan_made_is_not_known_yet(project: RehearsalProject) -> None:
    run(project, "infra/train/ffffff")
    file = project.checkpoint("train")
    assert file is not None
    file.parent.mkdir(parents=True)
    for latest, known in (({}, False), ({"pending_operations": [{}]}, True), ({"resources": [{}]}, True)):
        file.write_text(json.dumps({"version": 3, "checkpoint": {"latest": latest}}))
        assert (findings(project) == ()) is known


def disk(project: RehearsalProject, mark: str) -> None:
    """A volume of whatever state."""
    tags = {"orch:stack": mark, "orch:urn": "aws:ebs/volume:Volume::data"}
    words = [{"Key": key, "Value": value} for key, value in tags.items()]
    project.cloud("aws").call(
        "CreateVolume",
        {
            "AvailabilityZone": "us-east-1a",
            "Size": 10,
            "TagSpecifications": [{"ResourceType": "volume", "Tags": words}],
        },
    )


def test_a_volume_is_not_made_twice_nor_where_the_cloud_does_not_tell(project: RehearsalProject) -> None:
    def told() -> Any:
        return other_volumes(stack_of(project, "data"), VOLUME, lambda _: None)

    run(project, "infra/serve/ffffff")
    disk(project, "infra/volume.other/ffffff")
    assert told() == ()
    disk(project, "infra/volume.data/ffffff")
    (found,) = told()
    assert (found.code, found.severity) == ("ORCH434", Severity.WARNING)
    assert found.summary == "another state of the project infra has made a volume data"
    with pytest.raises(Conflict, match="another state"):
        up_volume(project, VOLUME, lambda _: None)
    project.cloud("aws").turn(denied=["DescribeTags"])
    (found,) = told()
    assert (found.code, found.severity) == ("ORCH434", Severity.NOTE)
    with pytest.raises(Conflict, match="whether another state has made the volume data is not known"):
        up_volume(project, VOLUME, lambda _: None)
    for backend in ("local", "kubernetes", "azure"):
        elsewhere = VOLUME.model_copy(update={"backend": backend})
        assert other_volumes(stack_of(project, "data"), elsewhere, lambda _: None) == ()
    named = VOLUME.model_copy(update={"volume_id": "vol-1", "size_mib": None})
    assert other_volumes(stack_of(project, "data"), named, lambda _: None) == ()


@pytest.mark.parametrize("denied", [[], ["DescribeTags"]], ids=["found", "not told"])
def test_no_saved_plan_makes_what_is_there_or_may_be(project: RehearsalProject, denied: list[str]) -> None:
    run(project, "infra/train/ffffff")
    disk(project, "infra/volume.data/ffffff")
    project.cloud("aws").turn(denied=denied)
    approved: Any = None  # nothing is compared before
    request = FleetRequest(FLEET, project.root)
    fleet = fleet_agreed(project, request, approved, lambda _: None)
    volume = volume_agreed(project, VOLUME, approved, lambda _: None)
    for each in (fleet, volume):
        with pytest.raises(Conflict, match="another state") as raised, each:
            pass
        assert raised.value.code == "ORCH434"
        assert "`--make-another` to `orch up` without `--plan`" in (raised.value.hint or "")
    assert not StackState(project, "train").exists
    assert not stack_of(project, "data").exists


def test_nobody_looks_for_a_fleet_of_hosts_that_are_there(project: RehearsalProject) -> None:
    run(project, "infra/train/ffffff")
    before = len(project.cloud("aws").calls)
    hosts = Fleet.model_validate({"name": "train", "ssh_config": {"hosts": ["gpu1"]}})
    assert other_fleets(StackState(project, "train"), hosts, lambda _: None) == ()
    assert len(project.cloud("aws").calls) == before


def test_nobody_looks_where_the_state_knows_the_fleet_or_nothing_can_be_there(
    project: RehearsalProject,
) -> None:
    cloud = project.cloud("aws")
    assert (findings(project), cloud.calls) == ((), [])
    run(project, "infra/train/ffffff")
    before = len(cloud.calls)
    checkpoint = project.checkpoint("train")
    assert checkpoint is not None
    checkpoint.parent.mkdir(parents=True)
    latest = {"resources": [{"urn": "urn:pulumi:train::infra::pulumi:pulumi:Stack::infra-train"}]}
    checkpoint.write_text(json.dumps({"version": 3, "checkpoint": {"latest": latest}}))
    assert (findings(project), len(cloud.calls)) == ((), before)


@pytest.mark.parametrize(
    ("name", "type_", "node"),
    [
        ("train-0", INSTANCE, True),
        ("train-12", "", True),
        ("train-0-1a2b3c-4d5e6f-7a8b9c", "", True),
        ("train-0-address", "aws:ec2/eip:Eip", False),
        ("train-0", "aws:ec2/eip:Eip", False),
        ("train-bastion", INSTANCE, False),
        ("train-2-0", "", False),
        ("gcp_compute_instancefromtemplate_instancefromtemplate__train-1", "", True),
    ],
)
def test_nodes_are_told_by_their_names_and_types(name: str, type_: str, node: bool) -> None:
    resource = MarkedResource("aws", "infra/train/ffffff", "instance", "i-0", name, type=type_)
    assert is_node(resource, "train") is node
