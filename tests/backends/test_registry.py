"""Backends are found by name, and a fleet goes to the best candidate of all that it may use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from kit.clouds.planning import request_of
from kit.support import Folder

from orch.components.cloud_errors import CloudRefused
from orch.components.local.facts import LocalFacts
from orch.components.registry import planning
from orch.components.registry.backends import BrokenBackend, backend
from orch.components.request import PriorState
from orch.rehearsal.aws import client_hook as aws_hook
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.scenario import Failure
from orch.spec.diagnostics import Severity
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends import installed, settings_model
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.models.backends.local import LocalSettings

RACK = Path(__file__).parent / "rack"


def fleet(**properties: Any) -> Fleet:
    return Fleet.model_validate({"type": "fleet", "name": "lab", "nodes": "1", **properties})


def env(*folders: Path) -> dict[str, str]:
    return {"PYTHONPATH": ":".join(map(str, folders))}


@dataclass(frozen=True)
class Spot:
    backend: str
    price: float | None
    kept: bool = False

    @property
    def words(self) -> str:
        return f"{self.backend} at {self.price}"


# Order


def test_candidates_of_several_backends_are_in_one_order_by_price() -> None:
    lists = [
        [Spot("aws", 3.0), Spot("aws", 9.0)],
        [Spot("gcp", 2.0), Spot("gcp", 4.0), Spot("gcp", None)],
    ]
    found = [(each.backend, each.price) for each in planning.by_price(lists)]
    assert found == [("gcp", 2.0), ("aws", 3.0), ("gcp", 4.0), ("aws", 9.0), ("gcp", None)]


def test_each_backend_keeps_its_own_order() -> None:
    lists = [[Spot("aws", 5.0), Spot("aws", 1.0)], [Spot("gcp", 3.0)]]
    assert [each.price for each in planning.by_price(lists)] == [3.0, 5.0, 1.0]


@pytest.mark.parametrize(
    ("written", "settings", "before", "expected"),
    [
        (None, (), None, ("local",)),
        (None, (AwsSettings(), GcpSettings()), None, ("aws", "gcp")),
        (None, (LocalSettings(), GcpSettings()), None, ("local", "gcp")),
        (["gcp", "aws"], (AwsSettings(),), None, ("gcp", "aws")),
        (["aws", "runpod"], (), None, ("aws", "runpod")),
        (["aws", "oci"], (), None, ("aws",)),
        # A fleet that is up stays where it is until its file says otherwise.
        (None, (AwsSettings(),), "local", ("local",)),
        (["aws"], (AwsSettings(),), "local", ("aws",)),
    ],
)
def test_where_a_fleet_may_go(
    written: list[str] | None, settings: Any, before: str | None, expected: tuple[str, ...]
) -> None:
    model = fleet(**({"backends": written} if written else {}))
    request = request_of(model, *settings, previous=PriorState(backend=before))
    assert request.backends == expected


def test_the_cheaper_cloud_comes_first_and_the_other_is_tried_after_it(tmp_path: Path) -> None:
    cloud = Cloud.create(tmp_path / "aws.db")
    cloud.turn(quotas={"L-1216C47A": 2000})
    model = fleet(backends=["gcp", "aws"], resources={"cpu": "8..8", "memory": "16GB..64GB"})
    request = request_of(model, AwsSettings(), session=aws_hook.session(cloud))
    found = planning.candidates_of(request)
    assert not request.refused
    assert {each.backend for each in found} == {"aws", "gcp"}
    prices = {name: [each.price for each in found if each.backend == name] for name in ("aws", "gcp")}
    first = min(("aws", "gcp"), key=lambda name: prices[name][0] or 0.0)
    assert found[0].backend == first


def test_a_backend_without_an_offer_is_told_and_the_other_one_is_used(tmp_path: Path) -> None:
    cloud = Cloud.create(tmp_path / "aws.db")
    cloud.turn(quotas={"L-417A185B": 2000})
    model = fleet(backends=["gcp", "aws"], instance_types=["p5.48xlarge"], regions=["us-east-1"])
    made = planning.compile_fleet(request_of(model, AwsSettings(), session=aws_hook.session(cloud)))
    assert made.pins["backend"] == "aws"
    assert any(reason.startswith("not on gcp: ") for reason in made.reasons)


def test_no_backend_with_an_offer_is_one_error_that_names_each() -> None:
    model = fleet(backends=["gcp", "aws"], resources={"gpu": "H100:23"})
    with pytest.raises(PlanErrors) as caught:
        planning.compile_fleet(request_of(model))
    summaries = " ".join(each.summary for each in caught.value.findings)
    assert "no GCP offer fits" in summaries
    assert "no AWS offer fits" in summaries


def test_a_fleet_that_is_up_stays_on_its_cloud(tmp_path: Path) -> None:
    cloud = Cloud.create(tmp_path / "aws.db")
    cloud.turn(quotas={"L-1216C47A": 2000})
    model = fleet(backends=["gcp", "aws"], instance_types=["p5.48xlarge", "a3-megagpu-8g"])
    request = request_of(model, AwsSettings(), session=aws_hook.session(cloud))
    aws = next(each for each in planning.candidates_of(request) if each.backend == "aws" and each.zone)  # type: ignore[attr-defined]
    pins = {"region": aws.region, "zone": aws.zone, "instance_type": aws.type.name}  # type: ignore[attr-defined]
    there = replace(request, previous=PriorState(pins=pins, backend="aws"))
    assert [(each.backend, each.kept) for each in planning.candidates_of(there)] == [("aws", True)]


def test_beside_this_machine_the_order_of_the_file_counts(tmp_path: Path) -> None:
    cloud = Cloud.create(tmp_path / "aws.db")
    cloud.turn(quotas={"L-417A185B": 2000})
    model = fleet(backends=["aws", "local"], instance_types=["p5.48xlarge"], regions=["us-east-1"])
    request = request_of(model, AwsSettings(), session=aws_hook.session(cloud))
    assert planning.candidates_of(request)[0].backend == "aws"
    assert planning.compile_fleet(request).pins["backend"] == "aws"


def test_a_mistake_in_the_file_takes_no_fleet_from_its_cloud() -> None:
    pins = {"region": "us-east-1", "zone": "use1-az1", "instance_type": "p5.48xlarge"}
    model = fleet(
        backends=["aws", "gcp"],
        blocks=16,
        instance_types=["p5.48xlarge", "a2-megagpu-16g"],
        resources={"gpu": "8.."},
    )
    request = request_of(
        model, AwsSettings(), previous=PriorState(pins=pins, backend="aws"), session=object()
    )
    with pytest.raises(PlanErrors, match="16"):
        planning.compile_fleet(request)


def test_a_fleet_that_stays_while_the_project_has_another_backend_now_is_told_so() -> None:
    request = request_of(fleet(), AwsSettings(), previous=PriorState(backend="local"))
    assert request.backends == ("local",)
    with patch("orch.components.local.backend.ask", lambda image: LocalFacts(64, 1 << 20, image or "node")):
        made = planning.compile_fleet(request)
    assert "it stays on local, where it is: write `backends: [aws]` to move it" in made.reasons


def test_a_fleet_whose_backend_is_gone_is_not_made_elsewhere() -> None:
    request = request_of(fleet(), AwsSettings(), previous=PriorState(backend="rack"))
    with pytest.raises(BrokenBackend, match="no package here has that backend"):
        planning.compile_fleet(request)


# Another package


@pytest.fixture
def rack() -> Iterator[None]:
    sys.path.insert(0, str(RACK))
    _forget()
    yield
    sys.path.remove(str(RACK))
    _forget()


def _forget() -> None:
    importlib.invalidate_caches()
    for each in (installed, settings_model, backend):
        each.cache_clear()


@pytest.mark.usefixtures("rack")
def test_a_backend_of_another_package_is_found_by_its_entry_point() -> None:
    assert backend("rack").name == "rack"
    request = request_of(fleet(backends=["rack"], regions=["attic"]))
    assert [each.words for each in planning.candidates_of(request)] == [
        "a shelf in the attic, $0.75 an hour each"
    ]


def test_its_files_are_validated_and_its_offers_listed(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: lab\nbackends: [{type: rack, room: cellar}]\n")
    folder.write("fleet.yml", "type: fleet\nname: lab\nnodes: 1\nbackends: [rack]\nregions: [attic]\n")
    said = folder.orch("validate", ".", "--strict", env=env(RACK))
    assert said.code == 0, said.err
    said = folder.orch("offers", "fleet.yml", "--json", env=env(RACK))
    assert said.code == 0, said.err
    (offer,) = said.json["fleets"][0]["offers"]
    assert (offer["backend"], offer["instance_type"], offer["region"]) == ("rack", "shelf", "attic")
    folder.write("fleet.yml", "type: fleet\nname: lab\nnodes: 1\nbackends: [rack]\nmax_price: 3\n")
    said = folder.orch("preview", "fleet.yml", env=env(RACK))
    assert said.code == 3
    assert "`max_price` is not supported by this version" in said.err
    assert "unknown backend 'rack'" in folder.orch("validate", "fleet.yml").err


def test_without_one_of_its_methods_the_error_names_it(tmp_path: Path) -> None:
    for source in RACK.rglob("*"):
        if source.is_file() and "__pycache__" not in source.parts:
            target = tmp_path / "rack" / source.relative_to(RACK)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            target.write_text(text.replace("    def facts(", "    def facts_of("))
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: lab\nbackends: [{type: rack}]\n")
    folder.write("fleet.yml", "type: fleet\nname: lab\nnodes: 1\nbackends: [rack]\n")
    said = folder.orch("preview", "fleet.yml", env=env(tmp_path / "rack"))
    assert said.code == 3
    assert "the backend rack has no `facts`" in said.err
    assert "orch_rack.backend:RackBackend" in said.err


# Backends and regions that refuse


def test_a_cloud_that_nobody_is_logged_in_to_is_told_of_and_the_next_one_is_used(
    tmp_path: Path,
) -> None:
    cloud = Cloud.create(tmp_path / "aws.db")
    cloud.turn(quotas={"L-DB2E81BA": 2000})

    def session(name: str) -> object:
        if name == "gcp":  # Google's own libraries are in no process with Pulumi's: tests/kit/apart.py
            raise CloudRefused("nobody is logged in", code="ORCH303")
        return aws

    model = fleet(backends=["gcp", "aws"], resources={"gpu": "L4:1"})
    aws = aws_hook.session(cloud)
    request = request_of(model, AwsSettings())
    request = replace(request, session=session)
    assert planning.candidates_of(request)[0].backend == "gcp"
    made = planning.compile_fleet(request)
    assert made.pins["backend"] == "aws"
    (told,) = [each for each in made.findings if each.path == "backends"]
    assert told.severity is Severity.WARNING
    assert told.summary.startswith("not on gcp: ")
    assert told.code == "ORCH303"


def refusing(region: str, code: str) -> Failure:
    return Failure(code=code, message="explicit deny", action="DescribeInstanceTypes", region=region)


def test_a_region_that_refuses_is_told_of_and_the_next_one_is_used(tmp_path: Path) -> None:
    cloud = Cloud.create(tmp_path / "aws.db")
    cloud.turn(quotas={"L-417A185B": 2000}, failures=[refusing("us-east-1", "UnauthorizedOperation")])
    model = fleet(backends=["aws"], instance_types=["p5.48xlarge"], regions=["us-east-1", "us-east-2"])
    made = planning.compile_fleet(request_of(model, AwsSettings(), session=aws_hook.session(cloud)))
    assert made.pins["region"] == "us-east-2"
    (told,) = [each for each in made.findings if each.path == "backends"]
    assert told.summary.startswith("not on aws in us-east-1: AWS does not let these credentials do this")


def test_when_all_regions_refuse_the_reason_is_told_once(tmp_path: Path) -> None:
    cloud = Cloud.create(tmp_path / "aws.db")
    regions = ["us-east-1", "us-east-2"]
    cloud.turn(failures=[refusing(each, "OptInRequired") for each in regions])
    model = fleet(backends=["aws"], instance_types=["p5.48xlarge"], regions=regions)
    with pytest.raises(CloudRefused, match="AWS does not let these credentials do this") as caught:
        planning.compile_fleet(request_of(model, AwsSettings(), session=aws_hook.session(cloud)))
    assert caught.value.exit_code == 5


def test_when_no_backend_is_left_all_reasons_are_told(tmp_path: Path) -> None:
    cloud = Cloud.create(tmp_path / "aws.db")
    cloud.turn(denied=["ec2:DescribeInstanceTypes"])
    model = fleet(backends=["gcp", "aws"], instance_types=["p5.48xlarge"], regions=["us-east-1"])
    with pytest.raises(PlanErrors) as caught:
        planning.compile_fleet(request_of(model, AwsSettings(), session=aws_hook.session(cloud)))
    told = " ".join(each.summary for each in caught.value.findings)
    assert "no GCP offer fits" in told
    assert "not on aws in us-east-1: AWS does not let these credentials do this" in told


@pytest.mark.usefixtures("engine")
def test_another_package_may_bring_the_driver_of_a_name_that_is_known_from_elsewhere(tmp_path: Path) -> None:
    for source in RACK.rglob("*"):
        if source.is_file() and "__pycache__" not in source.parts:
            target = tmp_path / "rack" / source.relative_to(RACK)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            target.write_text(text.replace('"rack"', '"vastai"').replace("rack =", "vastai ="))
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: lab\nbackends: [{type: vastai, room: cellar}]\n")
    folder.write("fleet.yml", "type: fleet\nname: lab\nnodes: 1\nbackends: [vastai]\nregions: [attic]\n")
    said = folder.orch("validate", ".", "--strict", env=env(tmp_path / "rack"))
    assert said.code == 0, said.err
    said = folder.orch("preview", "fleet.yml", env=env(tmp_path / "rack"))
    assert "a shelf in the attic" in said.out, said.err
    assert "orch has no driver for vastai" in folder.orch("validate", "fleet.yml").err
