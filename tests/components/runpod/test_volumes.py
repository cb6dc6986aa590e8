"""Network volumes of RunPod: where they go, what they are, and what is wrong at its line."""

from __future__ import annotations

from typing import Any

import pytest

from orch.components.runpod.account.client import Login
from orch.components.runpod.volumes import RunpodVolumes, plan_new
from orch.components.volumes import Account, VolumeRequest, replaced_property
from orch.spec.findings import PlanError
from orch.spec.models import Volume
from orch.spec.volume_state import VolumeState

CENTERS = {
    "US-KS-2": ("STANDARD", "HIGH_PERFORMANCE"),
    "US-CA-2": ("STANDARD",),
    "EU-RO-1": ("STANDARD",),
    "US-DE-1": (),
}


def planned(previous: VolumeState | None = None, **written: Any) -> VolumeState:
    given = {"name": "data", "backend": "runpod", "region": "US", "size": "100GB", **written}
    request = VolumeRequest(Volume.model_validate(given), Account(), previous, "0a1b2c")
    return plan_new(request, Login("rpa_key"), CENTERS).state


@pytest.mark.parametrize(
    ("written", "center"),
    [
        ({}, "US-CA-2"),
        ({"disk_type": "high_performance"}, "US-KS-2"),
        ({"region": "us-ks-2"}, "US-KS-2"),
        ({"availability_zone": "US-KS-2"}, "US-KS-2"),
        ({"region": "RO"}, "EU-RO-1"),
    ],
)
def test_a_volume_is_in_one_data_center_of_its_region(written: dict[str, Any], center: str) -> None:
    assert planned(**written).region == center


def test_a_volume_stays_where_it_is_and_grows_there() -> None:
    before = planned(availability_zone="US-KS-2", disk_type="HIGH_PERFORMANCE")
    after = planned(before, size="200GB")
    assert (after.region, after.disk_type, after.size_mib) == ("US-KS-2", "HIGH_PERFORMANCE", 200 * 1024)
    assert replaced_property(RunpodVolumes(), before, after) is None
    sold_out = before.model_copy(update={"region": "US-DE-1"})
    assert planned(sold_out).region == "US-DE-1"
    moved = planned(before, region="RO", disk_type="STANDARD")
    assert replaced_property(RunpodVolumes(), before, moved) == ("region", "region")
    # One that was registered says nothing of orch's own.
    assert planned(before.model_copy(update={"external": True})).region == "US-CA-2"


def test_a_volume_has_ten_gigabytes_at_least() -> None:
    assert planned(size="1GB").size_mib == 10 * 1024


@pytest.mark.parametrize(
    ("written", "code", "path", "told"),
    [
        ({"disk_type": "fast"}, "ORCH111", "disk_type", "RunPod has no disk type fast"),
        ({"size": "5TB"}, "ORCH270", "size", "4096 GB at most, 5120 are written"),
        ({"region": "MARS"}, "ORCH225", "region", "RunPod has no region MARS"),
        ({"region": "US-XX-9"}, "ORCH225", "region", "RunPod has no data center US-XX-9"),
        ({"availability_zone": "US-XX-9"}, "ORCH225", "availability_zone", "no data center US-XX-9"),
        (
            {"availability_zone": "US-DE-1"},
            "ORCH225",
            "availability_zone",
            "no STANDARD network volumes in US-DE-1",
        ),
        (
            {"region": "RO", "disk_type": "HIGH_PERFORMANCE"},
            "ORCH225",
            "region",
            "no HIGH_PERFORMANCE network volumes in RO",
        ),
    ],
)
def test_what_no_network_volume_can_be_is_told_at_its_property(
    written: dict[str, Any], code: str, path: str, told: str
) -> None:
    with pytest.raises(PlanError) as caught:
        planned(**written)
    assert (caught.value.code, caught.value.path) == (code, path)
    assert told in caught.value.summary
    assert caught.value.hint
