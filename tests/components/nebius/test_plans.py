"""Plans on Nebius beyond the cases of `golden/`: types, running fleets, user data."""

from __future__ import annotations

from kit.clouds.nebius_cases import Case
from kit.clouds.plan_cases import CATALOG


def test_each_type_with_infiniband_has_a_plan() -> None:
    planned = {Case.of(name).plan().instance_type for name in Case.planned()}
    fast = {each.type.name for each in CATALOG.lists["nebius"].offers if each.fabrics}
    assert fast <= planned


def test_a_running_fleet_stays_on_its_fabric_whatever_its_price_and_the_stock() -> None:
    case = Case.of("h100")
    first = case.plan()
    case.data["pins"] = dict(first.pins)
    case.data["stock"] = {"fabric-2": 0, "fabric-3": 99, "fabric-4": 99, "fabric-6": 99}
    second = case.plan()
    assert (second.zone, second.price, second.image) == (first.zone, first.price, first.image)
    assert second.layout_unchanged
    assert "a cluster never moves" in " ".join(second.reasons)


def test_user_data_has_the_marks_of_one_node_and_fits() -> None:
    text = Case.of("h100").plan().cloud_init
    assert "hostname: @@NAME@@" in text
    assert "@@HOST_KEY@@" in text
    assert "notices.sh" not in text.replace("[ ! -e /var/lib/orch/notices.sh ]", "")
    assert "8 InfiniBand devices" in text
    assert "InfiniBand devices" not in Case.of("l40s").plan().cloud_init
