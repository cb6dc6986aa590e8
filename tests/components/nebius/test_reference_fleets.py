"""The fleets of the reference documents that name no cloud, unchanged, in projects whose clouds are Nebius,
or AWS and Nebius: validated as for an `up`, and previewed by the engine on a simulated account."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from kit.clouds.cloud_engine import CloudStack
from kit.support import ROOT

from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.project import rehearse
from orch.rehearsal.scenario import Knobs
from orch.spec.diagnostics import Severity
from orch.spec.findings import PlanErrors
from orch.spec.loader.load import load_paths
from orch.spec.models import Fleet
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import FleetRequest, compile_for
from orch.stacks.project.project import find
from orch.stacks.stack.state import StackState

REFERENCE = ROOT / "tests" / "spec" / "reference"
pytestmark = [pytest.mark.usefixtures("engine", "forked_providers"), pytest.mark.timeout(600)]


def of_clouds() -> dict[str, Path]:
    """The blocks that are fleets of clouds, and may go to any."""
    found: dict[str, Path] = {}
    for path in sorted(REFERENCE.glob("*.yml")):
        block = yaml.safe_load(path.read_text())
        if block.get("type") == "fleet" and not {"ssh_config", "backends"} & set(block):
            found[path.stem] = path
    return found


# How many nodes the plan makes, and of which type.
H100, CPU = "gpu-h100-sxm_8gpu-128vcpu-1600gb", "cpu-e2_2vcpu-8gb"
PLANNED: Mapping[str, tuple[int, str]] = {
    "fleets-01-quickstart": (0, CPU),
    "fleets-03-cluster": (2, H100),
    "fleets-05-nodes": (0, CPU),
    "fleets-06-pre-provisioned": (2, H100),
    "fleets-07-target": (6, CPU),
    "fleets-08-spot": (0, CPU),
    "fleets-10-blocks": (0, H100),
}
ELSEWHERE = "fleets-09-idle"
"""Wants a GPU of 24GB, and Nebius has none."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    return project(tmp_path_factory.mktemp("reference"), "nebius")


def project(folder: Path, *clouds: str) -> CloudStack:
    entries = ", ".join(f"{{type: {cloud}}}" for cloud in clouds)
    (folder / "orch.yml").write_text(f"project: tests\nbackends: [{entries}]\n")
    NebiusCloud.create(folder / ".orch" / "rehearsal" / "nebius.db", knobs=Knobs()).store.close()
    return CloudStack(folder, rehearse(find(folder), nodes=False).project, "my-fleet")


def loaded(lab: CloudStack, name: str) -> Fleet:
    """The block, as `orch up` reads it. Nothing is said of it."""
    file = lab.folder / f"{name}.yml"
    shutil.copy(of_clouds()[name], file)
    backends = [each.type for each in lab.project.backends]
    read = load_paths([file], environ={}, launch=True, backends=backends)
    assert [each for each in read.diagnostics if each.severity is Severity.ERROR] == []
    (document,) = read.documents
    assert isinstance(document.model, Fleet)
    return document.model


def nodes_of(plan: Plan) -> list[str]:
    return sorted(
        change.name
        for change in plan.changes
        if change.type == "orch-nebius:index:Instance" and not change.name.endswith("-bastion")
    )


def test_no_block_is_missing() -> None:
    assert set(of_clouds()) == {*PLANNED, ELSEWHERE}


@pytest.mark.parametrize("name", PLANNED)
def test_a_fleet_of_the_reference_is_planned_on_nebius(lab: CloudStack, name: str) -> None:
    fleet, (count, kind) = loaded(lab, name), PLANNED[name]
    plan = lab.plan(fleet)
    assert {change.op for change in plan.changes} == {"create"}
    assert nodes_of(plan) == [f"my-fleet-{index}" for index in range(count)]
    assert any(f"{kind} in " in line for line in plan.reasons)
    assert plan.hourly > 0 or not count


def test_one_that_nebius_has_no_machine_for_is_refused_there_and_goes_to_the_other_cloud(
    tmp_path: Path, lab: CloudStack
) -> None:
    with pytest.raises(PlanErrors, match="no Nebius offer fits") as refused:
        lab.plan(loaded(lab, ELSEWHERE))
    assert [each.code for each in refused.value.findings] == ["ORCH200"]
    both = project(tmp_path, "aws", "nebius")
    request = FleetRequest(loaded(both, ELSEWHERE), both.folder)
    deployment = compile_for(StackState(both.project, both.name), request)
    assert {each.backend for each in deployment.priced} == {"aws"}


@pytest.mark.parametrize("name", PLANNED)
def test_it_goes_to_the_cheaper_one_of_two_clouds(tmp_path: Path, name: str) -> None:
    lab = project(tmp_path, "aws", "nebius")
    fleet, (count, kind) = loaded(lab, name), PLANNED[name]
    stack = StackState(lab.project, lab.name)
    deployment = compile_for(stack, FleetRequest(fleet, lab.folder))
    assert len(deployment.nodes) == count
    where = {each.backend for each in deployment.priced}
    assert where <= {"aws", "nebius"}
    if kind == H100 and count:
        assert where == {"nebius"}


@pytest.mark.parametrize("name", ["cluster", "spot"])
def test_an_example_is_planned_the_same_twice(lab: CloudStack, name: str) -> None:
    (document,) = load_paths(
        [ROOT / "examples" / "nebius" / f"{name}.yml"], environ={}, launch=True
    ).documents
    assert isinstance(document.model, Fleet)
    request = FleetRequest(document.model, lab.folder)
    first, second = (compile_for(StackState(lab.project, document.model.name), request) for _ in range(2))
    for each in (first, second):
        assert len(each.nodes) == 2
    told = [(each.pins, each.reasons, each.priced, each.hourly, each.findings) for each in (first, second)]
    assert told[0] == told[1]
