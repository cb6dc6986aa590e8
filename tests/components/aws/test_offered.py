"""Types of which no list tells the places: the account is asked, here the simulated one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.plan_cases import CATALOG
from kit.clouds.planning import request_of

from orch.catalog.aws.machines import nics
from orch.components.aws.account.facts import Reservation
from orch.components.aws.backend import AwsBackend
from orch.components.aws.candidates import CloudCandidate, candidates, in_written_zones, with_known_zone
from orch.components.aws.nics import interfaces
from orch.components.registry.planning import compile_fleet
from orch.components.request import PriorState
from orch.rehearsal.aws import client_hook
from orch.rehearsal.aws.account import Cloud
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.state import FleetSpares

SETTINGS = AwsSettings.model_validate({"type": "aws"})


def fleet(**properties: Any) -> Fleet:
    base = {"type": "fleet", "name": "train", "backends": ["aws"], "nodes": "2"}
    return Fleet.model_validate({**base, **properties})


def places(previous: PriorState | None = None, **properties: Any) -> tuple[CloudCandidate, ...]:
    return candidates(fleet(**properties), SETTINGS, CATALOG, previous=previous or PriorState())


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    made = Cloud.create(tmp_path / "cloud")
    made.turn(quotas={"L-DB2E81BA": 2000, "L-1216C47A": 2000})
    return made


def found(cloud: Cloud, **properties: Any) -> list[tuple[str, str, str]]:
    request = request_of(fleet(**properties), SETTINGS, session=client_hook.session(cloud))
    known = AwsBackend().settle(request, AwsBackend().candidates(request))
    return [(each.type.name, each.region, each.zone) for each in known]


def refused(**properties: Any) -> Any:
    with pytest.raises(PlanErrors) as caught:
        places(**properties)
    return caught.value.findings[0]


# In which order, and where


def test_four_l4_go_to_the_cheapest_type_in_a_zone_that_the_account_has(cloud: Cloud) -> None:
    known = found(cloud, resources={"gpu": "L4:4"})
    assert known[:2] == [
        ("g6.12xlarge", "us-east-1", "use1-az1"),
        ("g6.12xlarge", "us-east-1", "use1-az2"),
    ]
    assert {name for name, _, _ in known} == {"g6.12xlarge", "g6.24xlarge"}


def test_such_a_fleet_is_planned_there(cloud: Cloud) -> None:
    model = fleet(resources={"gpu": "L4:4"}, placement="cluster")
    made = compile_fleet(request_of(model, SETTINGS, session=client_hook.session(cloud))).plan
    assert (made.instance_type, made.zone) == ("g6.12xlarge", "use1-az1")
    assert [each.kind for each in made.interfaces] == ["interface", "efa-only"]
    assert not [each for each in made.warnings if each.code == "ORCH209"]
    assert any("local NVMe of 3760 GB in all" in reason for reason in made.reasons)


def test_a_zone_that_is_written_is_the_one(cloud: Cloud) -> None:
    assert found(cloud, instance_types=["g6.12xlarge"], availability_zones=["use1-az4"]) == [
        ("g6.12xlarge", "us-east-1", "use1-az4")
    ]
    assert found(cloud, instance_types=["g6.12xlarge"], availability_zones=["us-east-1a"]) == [
        ("g6.12xlarge", "us-east-1", "use1-az2")
    ]


def test_what_the_region_has_not_is_passed_over(cloud: Cloud) -> None:
    cloud.turn(offered={"g6.12xlarge": ["eu-west-1b"]})
    known = found(cloud, resources={"gpu": "L4:4"}, regions=["us-east-1", "eu-west-1"])
    assert known[0] == ("g6.12xlarge", "eu-west-1", "euw1-az1")
    assert ("g6.24xlarge", "us-east-1", "") in known


def test_a_region_is_asked_once_for_all_its_types() -> None:
    asked: list[tuple[str, int]] = []

    def offered(region: str, types: Collection[str]) -> Mapping[str, Sequence[str]]:
        asked.append((region, len(types)))
        return {"g6.24xlarge": ("use1-az2",)} if region == "us-east-1" else {}

    model = fleet(resources={"gpu": "L4:4"}, regions=["us-east-1", "us-west-2"])
    known = with_known_zone(model, candidates(model, SETTINGS, CATALOG), offered, lambda place: True)
    assert (known[0].type.name, known[0].zone) == ("g6.24xlarge", "use1-az2")
    assert set(asked) == {("us-east-1", 2), ("us-west-2", 2)}


def test_a_type_that_no_region_of_the_account_has_is_told_with_the_regions(cloud: Cloud) -> None:
    with pytest.raises(PlanErrors) as caught:
        found(cloud, instance_types=["x8aedz.large"], regions=["us-west-2"])
    (finding,) = caught.value.findings
    assert (finding.code, finding.path) == ("ORCH205", "regions")
    assert finding.summary == "this account has no x8aedz.large in us-west-2"


def test_a_local_zone_is_taken_only_when_it_is_written() -> None:
    (place, *_) = places(instance_types=["g6.12xlarge"])
    local = replace(place, zone="use1-atl2-az1")
    free = in_written_zones(fleet(instance_types=["g6.12xlarge"]), SETTINGS, CATALOG, {})
    named = fleet(instance_types=["g6.12xlarge"], availability_zones=["use1-atl2-az1"])
    assert not free(local)
    assert in_written_zones(named, SETTINGS, CATALOG, {})(local)


def test_a_reservation_tells_the_zone() -> None:
    given = Reservation(
        id="cr-1", kind="reservation", instance_type="g6.12xlarge", region="us-east-1", zone="use1-az4",
        total=4, available=4, state="active",
    )  # fmt: skip
    model = fleet(instance_types=["g6.12xlarge"], reservation="cr-1")
    (only,) = candidates(model, SETTINGS, CATALOG, reservation=given)
    assert (only.zone, only.listed) == ("use1-az4", True)


def test_a_fleet_that_is_up_stays_where_it_is_at_the_price_of_its_region() -> None:
    pins = {"region": "eu-west-1", "zone": "euw1-az2", "instance_type": "g6.24xlarge", "spot": "false"}
    (kept,) = places(PriorState(pins), resources={"gpu": "L4:4"})
    assert (kept.type.name, kept.zone, kept.kept, kept.listed) == ("g6.24xlarge", "euw1-az2", True, True)
    assert kept.words.endswith("$6.675 an hour each (price of us-east-1)")


def test_a_cluster_tries_types_that_a_placement_group_takes_first() -> None:
    cluster = places(placement="cluster", resources={"cpu": 2, "memory": "8GB"})
    assert nics()[cluster[0].type.name].cluster
    assert places(resources={"cpu": 2, "memory": "8GB"})[0].type.name == "t3a.large"


# Network cards that are not known


def test_a_fast_interconnect_is_refused_by_name_where_the_cards_are_not_known() -> None:
    finding = refused(
        instance_types=["hpc7a.96xlarge"], placement="cluster", network={"interconnect": "required"}
    )
    assert (finding.code, finding.path) == ("ORCH223", "network.interconnect")
    assert "the catalogue does not know the network cards of hpc7a.96xlarge" in finding.summary


def test_such_a_type_is_offered_without_one() -> None:
    known = places(instance_types=["hpc7a.96xlarge"], placement="cluster")
    assert {each.type.name for each in known} == {"hpc7a.96xlarge"}
    assert [each.kind for each in interfaces(nics()["hpc7a.96xlarge"], efa=True)] == ["interface"]


@pytest.mark.parametrize(
    ("name", "fast"),
    [
        ("g6.12xlarge", 1), ("g6e.12xlarge", 1), ("g7e.48xlarge", 4), ("g7.48xlarge", 2),
        ("p3dn.24xlarge", 1),
        ("trn1n.32xlarge", 16), ("c6in.32xlarge", 2), ("hpc7g.16xlarge", 1), ("inf2.48xlarge", 0),
    ],
)  # fmt: skip
def test_each_known_card_with_efa_carries_one(name: str, fast: int) -> None:
    made = interfaces(nics()[name], efa=True)
    assert sum(each.kind == "efa-only" for each in made) == fast
    assert made[0].kind == "interface"


# Places that are asked for when they are tried


def test_a_region_is_asked_for_its_zones_when_it_is_tried(cloud: Cloud) -> None:
    model = fleet(instance_types=["g6.12xlarge"], regions=["us-east-1", "us-west-2"])
    first = compile_fleet(request_of(model, SETTINGS, session=client_hook.session(cloud)))
    assert first.place is not None
    assert first.place.startswith("g6.12xlarge in us-east-1, zone use1-az1, on demand")
    assert [each.words.split(",")[1].strip() for each in first.elsewhere[:-1]] == [
        f"zone use1-az{number}" for number in range(2, 7)
    ]
    later = first.elsewhere[-1]
    assert later.words.startswith("g6.12xlarge in us-west-2, on demand")
    there = later.compile()
    assert there.place is not None
    assert there.place.startswith("g6.12xlarge in us-west-2, zone usw2-az1, on demand")
    assert len(there.elsewhere) == 3
    assert "(price of us-east-1)" in there.place


def test_every_place_has_the_spares_of_the_file_and_how_health_is_watched(cloud: Cloud) -> None:
    model = fleet(
        instance_types=["g6.12xlarge"],
        regions=["us-east-1"],
        nodes={"min": 2, "max": 4, "spare": 1},
        health={"interval": "5m"},
    )
    first = compile_fleet(request_of(model, SETTINGS, session=client_hook.session(cloud)))
    other = first.elsewhere[0].compile()
    for planned in (first, other):
        assert planned.spares == FleetSpares(count=1, of=3, least=3)
        assert planned.health.interval_s == 300
        assert len(planned.nodes) == 3
    assert "1 of 3 nodes is a spare: runs get it only in place of nodes that fail" in first.reasons
