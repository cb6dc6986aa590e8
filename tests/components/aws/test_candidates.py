"""Where an AWS fleet may go, and in which order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from kit.clouds.plan_cases import CATALOG

from orch.components.aws.account.facts import Zone
from orch.components.aws.candidates import CloudCandidate, candidates
from orch.components.request import PriorState
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings

STAYED = {"region": "us-west-2", "zone": "usw2-az3", "instance_type": "p5.48xlarge", "spot": "false"}


def places(
    pins: dict[str, str] | None = None,
    zones: dict[str, list[Zone]] | None = None,
    settings: dict[str, Any] | None = None,
    **fleet: Any,
) -> tuple[CloudCandidate, ...]:
    model = Fleet.model_validate(
        {"type": "fleet", "name": "p5", "backends": ["aws"], "nodes": "2", "placement": "cluster", **fleet}
    )
    backend = AwsSettings.model_validate({"type": "aws", **(settings or {})})
    return candidates(model, backend, CATALOG, previous=PriorState(pins or {}), zones=zones)


H100: dict[str, Any] = {"resources": {"gpu": "H100:8"}}


def test_the_cheapest_come_first_and_each_zone_once() -> None:
    found = places(**H100)
    prices = [each.price for each in found if each.price is not None]
    assert all(one <= other for one, other in pairwise(prices))
    assert len({(each.type.name, each.region, each.zone, each.spot) for each in found}) == len(found)
    assert {each.type.name for each in found} == {"p5.48xlarge"}


def test_conditions_narrow_them() -> None:
    found = places(**H100, regions=["us-west-2"], availability_zones=["usw2-az4"])
    assert [(each.region, each.zone) for each in found] == [("us-west-2", "usw2-az4")]
    assert places(instance_types=["p4d.*"], max_price="24")[-1].price == pytest.approx(23.71569)
    assert {each.region for each in places(**H100, settings={"regions": ["us-east-2"]})} == {"us-east-2"}


def test_spot_policy_chooses_prices() -> None:
    assert {each.spot for each in places(**H100, spot_policy="spot")} == {True}
    both = places(**H100, spot_policy="auto")
    assert both[0].spot
    assert {each.spot for each in both} == {True, False}


def test_a_zone_name_means_one_zone_where_the_account_was_asked() -> None:
    here = {"us-east-1": [Zone("use1-az6", "us-east-1a"), Zone("use1-az1", "us-east-1b")]}
    assert [each.zone for each in places(**H100, availability_zones=["us-east-1a"], zones=here)] == [
        "use1-az6"
    ]
    anywhere = places(**H100, availability_zones=["us-east-1a"])
    assert len({each.zone for each in anywhere}) > 1


def test_a_running_cluster_is_not_moved_by_prices() -> None:
    (kept,) = places(STAYED, **H100, max_price="1")
    assert (kept.zone, kept.kept) == ("usw2-az3", True)


@pytest.mark.parametrize(
    "change",
    [
        {"regions": ["us-east-1"]},
        {"availability_zones": ["usw2-az1"]},
        {"instance_types": ["p5en.48xlarge"]},
        {"spot_policy": "spot"},
        {"resources": {"gpu": "H200:8"}},
    ],
)
def test_what_the_file_excludes_moves_it(change: dict[str, Any]) -> None:
    assert not places(STAYED, **{**H100, **change} if "instance_types" not in change else change)[0].kept


def test_a_price_nobody_asks_is_told_with_the_condition() -> None:
    with pytest.raises(PlanErrors) as error:
        places(instance_types=["p5.48xlarge"], max_price="10")
    assert [(each.code, each.path) for each in error.value.findings] == [("ORCH200", "max_price")]


def test_types_whose_gpus_do_not_make_the_blocks_are_left_out() -> None:
    counts = {each.type.gpu_count for each in places(resources={"gpu": "1..8"}, placement="any", blocks="4")}
    assert counts
    assert all(count % 4 == 0 for count in counts)


def test_a_running_fleet_is_not_cut_into_blocks_that_its_gpus_do_not_make() -> None:
    with pytest.raises(PlanErrors) as refused:
        places(STAYED, **H100, blocks="3")
    (told,) = refused.value.findings
    assert (told.code, told.path) == ("ORCH147", "blocks")
    assert told.summary == "p5.48xlarge: 8 GPUs do not split into 3 blocks"
    assert told.hint == "possible: 1, 2, 4, 8"


@pytest.mark.parametrize(
    ("fleet", "code", "path", "hint"),
    [
        ({**H100, "regions": ["us-esat-1"]}, "ORCH205", "regions[0]", "did you mean 'us-east-1'?"),
        ({"resources": {"gpu": "H10:8"}}, "ORCH203", "resources.gpu", "did you mean 'H100'?"),
        ({"instance_types": ["p55.*"]}, "ORCH202", "instance_types[0]", None),
    ],
    ids=["region", "gpu", "pattern"],
)
def test_a_mistyped_name_is_told_beside_that_nothing_fits(
    fleet: dict[str, Any], code: str, path: str, hint: str | None
) -> None:
    with pytest.raises(PlanErrors) as refused:
        places(**fleet)
    unknown, nothing = refused.value.findings
    assert (unknown.code, unknown.path) == (code, path)
    assert hint is None or unknown.hint == hint
    assert (nothing.code, refused.value.code) == ("ORCH200", "ORCH200")
