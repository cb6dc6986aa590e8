"""`orch offers refresh nebius`: prices and stock of a simulated account, asked by Nebius's own SDK."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from kit.clouds.nebius_lab import Lab
from kit.support import Folder

from orch.catalog.errors import RefreshFailed
from orch.catalog.load import catalog
from orch.catalog.nebius.prices import prices_of
from orch.catalog.records import Fetched
from orch.catalog.shortages import Shortage
from orch.rehearsal.nebius.service import sdk_of
from orch.rehearsal.scenario import Failure

NOW = datetime(2026, 11, 26, 3, tzinfo=timezone.utc)
H100, B300 = "gpu-h100-sxm_8gpu-128vcpu-1600gb", "gpu-b300-sxm_8gpu-192vcpu-2768gb"


def fetched(lab: Lab, *regions: str) -> Fetched:
    types = tuple(each for each in catalog(Path("/nonexistent")).types.values() if each.backend == "nebius")
    sdk = sdk_of(lab.cloud, lab.address)
    try:
        return prices_of(sdk, types, regions=regions, now=NOW)
    finally:
        sdk.sync_close()


def test_each_preset_has_the_calculators_price_in_the_regions_that_have_it(lab: Lab) -> None:
    found = fetched(lab)
    prices = {(each.type.name, each.region): (each.price, each.spot_price) for each in found.offers}
    assert prices[H100, "eu-north1"] == (23.6, 10.0)
    assert prices["gpu-h200-sxm_1gpu-16vcpu-200gb", "eu-west1"] == (3.5, 1.45)
    assert prices["cpu-e2_2vcpu-8gb", "eu-north1"] == (0.0496, None)  # not sold preemptible
    assert [region for name, region in prices if name == B300] == ["uk-south1"]
    assert prices[B300, "uk-south1"][0]
    assert "eu-north1" in found.regions
    assert found.shortages == ()


def test_a_region_is_asked_for_alone_and_one_without_a_project_is_told(lab: Lab) -> None:
    assert {each.region for each in fetched(lab, "eu-west1").offers} == {"eu-west1"}
    with pytest.raises(RefreshFailed, match="no project of Nebius in eu-nowhere"):
        fetched(lab, "eu-nowhere")


def test_what_nebius_says_has_no_machine_is_a_shortage(lab: Lab) -> None:
    lab.cloud.turn(capacity={f"{H100}@fabric-3": 0}, spot_capacity={H100: 0})
    at = int(NOW.timestamp())
    own = [each for each in fetched(lab, "eu-north1").shortages if not each.spot]
    assert own == [Shortage("nebius", H100, "eu-north1", "fabric-3", False, at)]
    spot = [each.zone for each in fetched(lab).shortages if each.spot]
    assert spot == ["fabric-2", "fabric-3", "fabric-4", "fabric-6"]


def test_what_the_account_refuses_is_told(lab: Lab) -> None:
    lab.cloud.turn(failures=[Failure(action="CalculatorService.EstimateBatch", code="PERMISSION_DENIED")])
    with pytest.raises(RefreshFailed, match="Nebius does not tell its prices"):
        fetched(lab)


def test_without_credentials_the_command_says_what_to_set(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "NEBIUS_IAM_TOKEN": "", "ORCHCTL_CATALOG": str(tmp_path / "user")}
    said = Folder(tmp_path).orch("offers", "refresh", "nebius", env=home)
    assert said.code == 5, said.err
    assert "there are no credentials of Nebius" in said.err
    assert "set NEBIUS_IAM_TOKEN" in said.err
    assert not (tmp_path / "user").exists()
