"""What must hold of every row that is shipped, and how the files are read and written."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import pytest

from orch.catalog import load
from orch.catalog.errors import BadCatalogFile
from orch.catalog.records import Catalog
from orch.catalog.unpriced import unlisted_offers
from orch.offers.match import gpu_memory_mib
from orch.spec.models.selection import BACKENDS, FOREIGN_BACKENDS

GIB = 1024
VENDORS = {"nvidia", "amd", "aws", "qualcomm"}

# Regions in which AWS's zone ids are shortened: https://docs.aws.amazon.com/ram/latest/userguide/working-with-az-ids.html
DIRECTIONS = {
    "north": "n",
    "south": "s",
    "east": "e",
    "west": "w",
    "central": "c",
    "northeast": "ne",
    "northwest": "nw",
    "southeast": "se",
    "southwest": "sw",
}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return load.catalog(tmp_path_factory.mktemp("nothing-refreshed"))


def test_each_offer_is_listed_once(shipped: Catalog) -> None:
    keys = Counter(
        (offer.type.backend, offer.type.name, offer.region, offer.zone) for offer in shipped.offers()
    )
    assert [key for key, count in keys.items() if count > 1] == []
    assert len(keys) > 2000


def test_each_known_price_is_more_than_nothing_and_no_typing_error(shipped: Catalog) -> None:
    for offer in shipped.offers():
        for price in (offer.price, offer.spot_price):
            assert price is None or 0.001 < price < 500, offer


def test_each_price_list_is_of_a_backend_of_the_language_and_tells_its_source_and_age(
    shipped: Catalog,
) -> None:
    for name, prices in shipped.lists.items():
        assert name in (*BACKENDS, *FOREIGN_BACKENDS)
        assert prices.source.startswith("https://")
        assert prices.as_of
        assert not prices.refreshed
        assert prices.offers


def test_each_type_is_offered_somewhere(shipped: Catalog) -> None:
    offered = {(offer.type.backend, offer.type.name) for offer in shipped.offers()}
    elsewhere = {key for key, each in shipped.types.items() if any(unlisted_offers(shipped, each))}
    assert set(shipped.types) == offered | elsewhere
    assert {key for key, each in shipped.types.items() if each.surveyed} == offered


def test_each_type_has_sound_numbers(shipped: Catalog) -> None:
    for each in shipped.types.values():
        assert each.arch in ("x86", "arm")
        if each.vcpus is None:  # the account tells them
            assert (each.backend, bool(each.gpu)) == ("crusoe", True)
        assert 1 <= (each.vcpus or 1) <= 1024
        assert each.memory_mib is None or GIB // 2 <= each.memory_mib <= 32768 * GIB
        assert (each.gpu is None) == (each.gpu_count == 0)
        assert each.gpu_count <= 16
        assert each.form in ("", "SXM", "PCIe")


def test_each_gpu_has_a_known_vendor_and_a_size_it_is_sold_with(shipped: Catalog) -> None:
    for gpu in shipped.gpus.values():
        assert gpu.vendor in VENDORS
        assert gpu.kind in ("gpu", "accelerator")
        assert gpu.sizes_mib
        assert (gpu.compute_capability is not None) == (gpu.vendor == "nvidia"), gpu.name
    for each in shipped.types.values():
        memory = gpu_memory_mib(each)
        assert each.gpu is None or memory is None or memory in each.gpu.sizes_mib, each


def test_no_name_stands_for_two_gpus(shipped: Catalog) -> None:
    names = Counter(key for gpu in shipped.gpus.values() for key in gpu.keys)
    assert [name for name, count in names.items() if count > 1] == []


def test_gpus_with_arm_hosts_are_on_arm_types_and_no_others(shipped: Catalog) -> None:
    for each in shipped.types.values():
        if each.gpu is not None:
            assert (each.arch == "arm") == each.gpu.arm_only, each.name


def test_each_aws_zone_is_an_id_in_the_region_of_its_row(shipped: Catalog) -> None:
    for offer in shipped.lists["aws"].offers:
        area, direction, number = (offer.region or "").rsplit("-", 2)
        prefix = f"{area}{DIRECTIONS[direction]}{number}"
        assert re.fullmatch(rf"{prefix}(-[a-z]{{3}}\d)?-az\d", offer.zone or ""), offer


def test_the_zones_of_atlanta_and_los_angeles_are_the_local_ones(shipped: Catalog) -> None:
    local = {offer.zone for offer in shipped.offers() if offer.local_zone}
    assert local == {"use1-atl2-az1", "usw2-lax1-az1", "usw2-lax1-az2"}


def test_each_gcp_zone_begins_with_its_region(shipped: Catalog) -> None:
    assert all((offer.zone or "").startswith(f"{offer.region}-") for offer in shipped.lists["gcp"].offers)


def test_reading_everything_takes_well_under_a_tenth_of_a_second_of_one_processor(tmp_path: Path) -> None:
    def once() -> float:
        load._catalog.cache_clear()
        start = time.process_time()
        load.catalog(tmp_path)
        return time.process_time() - start

    assert min(once() for _ in range(5)) < 0.1


def test_a_list_that_is_written_reads_the_same(shipped: Catalog, tmp_path: Path) -> None:
    for name, prices in shipped.lists.items():
        path = tmp_path / load.price_file(name)
        load.write_prices(path, prices)
        again = load.read_prices(path, name, shipped.types)
        assert Counter(again.offers) == Counter(prices.offers)
        assert (again.source, again.as_of, again.note) == (prices.source, prices.as_of, prices.note)
        assert again.refreshed


def test_a_list_in_the_users_folder_goes_before_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "prices-aws.csv").write_text(
        "# source: a test\n# as_of: 2026-01-02\ntype,region,price,zones\n"
        "p5.48xlarge,us-east-1,50,use1-az4:20 use1-az5\n"
    )
    known = load.catalog(tmp_path)
    assert [(offer.zone, offer.price, offer.spot_price) for offer in known.lists["aws"].offers] == [
        ("use1-az4", 50.0, 20.0),
        ("use1-az5", 50.0, None),
    ]
    assert known.lists["aws"].as_of == "2026-01-02"
    assert not known.lists["gcp"].refreshed


@pytest.mark.parametrize(
    "rows",
    [
        "type,region,price,zones\nno.such,us-east-1,50,use1-az4",
        "type,region,price,zones\np5.48xlarge,us-east-1,dear,use1-az4",
        "type,region,price,zones\np5.48xlarge,us-east-1",
        "kind,place\np5.48xlarge,us-east-1",
    ],
)
def test_a_list_that_was_damaged_is_told_with_its_file_and_the_way_out(tmp_path: Path, rows: str) -> None:
    (tmp_path / "prices-aws.csv").write_text(f"# source: a test\n{rows}\n")
    with pytest.raises(BadCatalogFile) as caught:
        load.catalog(tmp_path)
    assert caught.value.where == str(tmp_path / "prices-aws.csv")
    assert "orch offers refresh" in (caught.value.hint or "")
