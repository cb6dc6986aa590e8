"""Fabrics that a backend names: which offers have them, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.support import Folder

from orch.catalog.load import SHIPPED, catalog, read_rows

H100 = "gpu-h100-sxm_8gpu-128vcpu-1600gb"
FLEET = "type: fleet\nname: lab\nnodes: 2\nplacement: cluster\nbackends: [nebius]\n"


def test_each_named_fabric_is_of_a_type_and_a_region_that_have_an_offer() -> None:
    for path in SHIPPED.glob("*/fabrics.csv"):
        offers = catalog().lists[path.parent.name].offers
        for row in read_rows(path):
            (offer,) = (o for o in offers if (o.type.name, o.region) == (row["type"], row["region"]))
            assert row["fabric"] in offer.fabrics
            assert offer.type.gpu_count == 8


def test_an_offer_without_a_price_is_listed_as_such() -> None:
    (b300,) = (o for o in catalog().lists["nebius"].offers if o.type.name.startswith("gpu-b300"))
    assert (b300.price, b300.spot_price, b300.region) == (None, None, "uk-south1")


@pytest.mark.parametrize(
    ("text", "code", "message", "hint"),
    [
        (
            "regions: [us-central1]\nnetwork:\n  fabric: fabric-7\n",
            3,
            "fleet.yml:8:11: error ORCH225: the fabric fabric-7 is in eu-north1, not in us-central1",
            "those have us-central1-a, us-central1-b",
        ),
        (
            f"instance_types: [{H100}]\nnetwork: {{fabric: fabric-7}}\n",
            3,
            "fleet.yml:7:19: error ORCH223: the fabric fabric-7 is of gpu-h200-sxm_8gpu-128vcpu-1600gb, "
            f"not of {H100}",
            "those have fabric-2, fabric-3, fabric-4, fabric-6",
        ),
        (
            "instance_types: [gpu-h100-sxm_1gpu-16vcpu-200gb]\nnetwork: {fabric: fabric-2}\n",
            3,
            f"fleet.yml:7:19: error ORCH223: the fabric fabric-2 is of {H100}, "
            "not of gpu-h100-sxm_1gpu-16vcpu-200gb",
            "those have no InfiniBand: remove `fabric`",
        ),
        (
            "network: {fabric: fabric-22}\n",
            0,
            "fleet.yml:6:19: warning ORCH205: the catalogue has no fabric 'fabric-22'",
            "did you mean 'fabric-2'?",
        ),
        (
            "regions: [eu-north9]\n",
            0,
            "fleet.yml:6:11: warning ORCH205: no offer is in a region 'eu-north9'",
            "did you mean 'eu-north1'?",
        ),
        (
            "instance_types: [gpu-h100-sxm_8gpu-128vcpu-1500gb]\n",
            0,
            "fleet.yml:6:18: warning ORCH202: the catalogue has no type 'gpu-h100-sxm_8gpu-128vcpu-1500gb'",
            f"did you mean '{H100}'?",
        ),
    ],
)
def test_validate_tells_where_a_wrong_place_is_written(
    tmp_path: Path, text: str, code: int, message: str, hint: str
) -> None:
    (tmp_path / "fleet.yml").write_text(FLEET + text)
    said = Folder(tmp_path).orch("validate", "fleet.yml")
    assert said.code == code, said.err
    assert message in said.err
    assert hint in said.err


def test_offers_are_those_that_have_the_fabric(tmp_path: Path) -> None:
    (tmp_path / "fleet.yml").write_text(FLEET + "resources: {gpu: '8'}\nnetwork: {fabric: us-central1-b}\n")
    said = Folder(tmp_path).orch("offers", "fleet.yml", "--json")
    (fleet,) = said.json["fleets"]
    assert {(each["instance_type"], each["region"]) for each in fleet["offers"]} == {
        ("gpu-b200-sxm_8gpu-160vcpu-1792gb", "us-central1")
    }


def test_a_type_without_the_fabric_is_a_near_miss(tmp_path: Path) -> None:
    (tmp_path / "fleet.yml").write_text(
        FLEET + "resources: {gpu: 'H100:8'}\nnetwork: {fabric: us-central1-b}\n"
    )
    said = Folder(tmp_path).orch("offers", "fleet.yml")
    assert said.code == 5
    assert "fleet.yml:7:19: error ORCH200: no offer fits the fleet 'lab'" in said.err
    assert "fabric: fabric-2 or fabric-3 or fabric-4 or fabric-6 (wanted us-central1-b)" in said.err
