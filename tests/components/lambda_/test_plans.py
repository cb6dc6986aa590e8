"""Plans on Lambda beyond the cases of `golden/`: types, running fleets, images, user data."""

from __future__ import annotations

import pytest
from kit.clouds.lambda_cases import TYPES, Case
from kit.clouds.plan_cases import CATALOG

from orch.components.lambda_.account.facts import TypeStock
from orch.components.lambda_.candidates import MOST_SHORT, candidates, placed
from orch.spec.findings import PlanErrors


def test_each_type_has_a_plan() -> None:
    assert {Case.of(name).plan().instance_type for name in Case.planned()} == set(TYPES)


def test_a_running_fleet_stays_in_its_region_whatever_the_capacity() -> None:
    case = Case.of("gpu_8x_h100_sxm5")
    first = case.plan()
    case.data["pins"] = dict(first.pins)
    case.data["stock"] = {first.instance_type: ["us-west-1"]}
    second = case.plan()
    assert (second.region, second.image) == (first.region, first.image)
    assert second.layout_unchanged


def test_an_image_of_orch_lock_is_pinned_in_its_region_alone() -> None:
    case = Case.of("gpu_8x_h100_sxm5")
    place = case.candidates()[0]
    lock = {"image": "image-locked", "image_of": "lambda-stack", "image_region": place.region}
    case.data["pins"] = lock
    assert case.plan().image == "image-locked"
    case.data["pins"] = {**lock, "image_region": "us-west-9"}
    assert case.plan().image == f"image-{place.region}"
    case.data["facts"] = {"image": None}
    with pytest.raises(PlanErrors) as wrong:
        case.plan()
    assert [each.detail for each in wrong.value.findings if each.code == "ORCH213"] == [None]


def test_where_no_region_has_capacity_those_of_the_account_are_tried() -> None:
    case = Case.of("gpu_8x_h100_sxm5")
    types = candidates(case.fleet, case.settings, CATALOG)
    stock = {case.plan().instance_type: TypeStock(100, 2800, frozenset())}
    asked = {"us-west-1", "us-east-1"}
    assert [each.region for each in placed(case.fleet, case.settings, types, stock=stock, regions=asked)] == [
        "us-east-1",
        "us-west-1",
    ]
    assert len(placed(case.fleet, case.settings, types, stock=stock, regions=())) == MOST_SHORT


def test_the_user_data_of_a_node_has_what_its_type_needs() -> None:
    text = Case.of("gpu_8x_h100_sxm5").plan().cloud_init
    assert "command -v nvidia-ctk >/dev/null || packages nvidia-container-toolkit || fail" in text
    assert "InfiniBand devices" not in text
    assert "ed25519_private" in text
