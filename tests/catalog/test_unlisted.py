"""Types of which a list tells no places, prices that regions lend each other, and how both are told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kit.support import Folder, Said

from orch.catalog.load import SHIPPED, catalog, read_prices, read_rows, write_prices
from orch.catalog.unpriced import reference_price, unlisted_offers, zone_prefix

CATALOG = catalog(Path("/nonexistent"))
L4 = CATALOG.types["aws", "g6.12xlarge"]


def offers(folder: Path, *words: str, **properties: str) -> Said:
    lines = {"type": "fleet", "name": "probe", "nodes": "1", "backends": "[aws]", **properties}
    (folder / "fleet.yml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return Folder(folder).orch("offers", "fleet.yml", *words, env={"ORCHCTL_CATALOG": str(folder / "user")})


def found(folder: Path, **properties: str) -> list[dict[str, object]]:
    return list(offers(folder, "--json", **properties).json["fleets"][0]["offers"])


def test_four_l4_are_found(tmp_path: Path) -> None:
    said = offers(tmp_path, resources='{gpu: "L4:4"}')
    assert (said.code, said.err) == (0, "")
    assert "us-east-1   ?     g6.12xlarge" in said.out
    assert "$4.602\n" in said.out
    assert "g6.24xlarge" in said.out
    assert "Zone ?: the account is asked" in said.out


def test_a_price_of_another_region_is_told_in_the_table_and_in_json(tmp_path: Path) -> None:
    said = offers(tmp_path, resources='{gpu: "L4:4"}', regions="[eu-west-1]", instance_types="[g6.12xlarge]")
    assert "$4.602 (price of us-east-1)" in said.out
    (one,) = found(tmp_path, regions="[eu-west-1]", instance_types="[g6.12xlarge]")
    assert (one["region"], one["zone"], one["listed"]) == ("eu-west-1", None, False)
    assert (one["price"], one["price_of"]) == (4.6016, "us-east-1")


def test_regions_without_a_price_of_their_own_are_one_row(tmp_path: Path) -> None:
    said = offers(tmp_path, instance_types="[g6.12xlarge]")
    rows = [line.split() for line in said.out.splitlines() if "g6.12xlarge" in line][1:]
    assert [row[2:4] for row in rows] == [["us-east-1", "?"], ["32", "regions"]]
    assert len(found(tmp_path, instance_types="[g6.12xlarge]")) == 33


def test_a_type_without_any_price_is_unpriced_and_last(tmp_path: Path) -> None:
    said = offers(tmp_path, instance_types="[hpc7a.96xlarge, m7i.large]", regions="[eu-north-1]")
    rows = [line for line in said.out.splitlines() if line.lstrip()[:1].isdigit()]
    assert rows[-1].split()[-1] == "unpriced"
    listed = found(tmp_path, instance_types="[hpc7a.96xlarge, m7i.large]", regions="[eu-north-1]")
    assert listed[-1]["instance_type"] == "hpc7a.96xlarge"
    assert listed[-1]["price"] is None
    assert listed[-1]["price_of"] is None
    assert all(one["price"] is not None for one in listed[:-1])


def test_a_type_that_us_east_1_does_not_sell_is_not_offered_there() -> None:
    regions = {offer.region for offer in unlisted_offers(CATALOG, CATALOG.types["aws", "hpc7a.96xlarge"])}
    assert "eu-north-1" in regions
    assert "us-east-1" not in regions


def test_a_limit_is_not_met_by_the_price_of_another_region(tmp_path: Path) -> None:
    within = found(tmp_path, instance_types="[g6.12xlarge]", max_price="5")
    assert {(one["region"], one["price_of"]) for one in within} == {("us-east-1", None)}
    said = offers(tmp_path, instance_types="[g6.12xlarge]", max_price="5", regions="[eu-west-1]")
    assert said.code == 5
    assert "price: not known there, $4.602 (price of us-east-1) (wanted at most $5.00)" in said.err


def test_spot_of_a_type_of_which_no_list_tells_is_unpriced(tmp_path: Path) -> None:
    listed = found(tmp_path, instance_types="[g6.12xlarge]", spot_policy="spot", regions="[us-east-1]")
    assert [(one["spot"], one["price"]) for one in listed] == [(True, None)]


def test_a_region_that_the_survey_left_out_has_what_the_others_have(tmp_path: Path) -> None:
    (one,) = found(tmp_path, instance_types="[m7i.large]", regions="[sa-east-1]")
    assert (one["price"], one["price_of"]) == (0.1008, "us-east-1")
    assert found(tmp_path, instance_types="[p5en.48xlarge]", regions="[eu-west-1]") == []


def test_a_zone_id_is_one_of_its_region() -> None:
    (one,) = unlisted_offers(CATALOG, L4, ("euw1-az2",)) and [
        offer for offer in unlisted_offers(CATALOG, L4, ("euw1-az2",)) if offer.region == "eu-west-1"
    ]
    assert one.zone == "euw1-az2"


def test_zones_begin_with_their_region_in_short() -> None:
    for offer in CATALOG.lists["aws"].offers:
        assert (offer.zone or "").startswith(f"{zone_prefix(offer.region or '')}-"), offer


def test_the_home_region_reference_price_before_the_others() -> None:
    type_ = replace(L4, home_price=None)
    assert reference_price(L4, {"us-east-1": 3.0, "eu-west-1": 2.0}) == ("us-east-1", 3.0)
    assert reference_price(L4, {"eu-west-1": 2.0}) == ("us-east-1", 4.6016)
    assert reference_price(type_, {"us-west-2": 2.0, "eu-west-1": 4.0, "us-east-1": None}) == (
        "eu-west-1",
        4.0,
    )
    assert reference_price(type_, {}) == (None, None)


def test_a_listed_place_without_a_price_borrows_one_and_does_not_keep_it(tmp_path: Path) -> None:
    listed = CATALOG.lists["aws"]
    borrowed = {(o.type.name, o.region, o.price_of) for o in listed.offers if o.price_of}
    assert ("trn1.32xlarge", "ap-south-1", "us-east-1") in borrowed
    path = tmp_path / "prices-aws.csv"
    write_prices(path, listed)
    assert "trn1.32xlarge,ap-south-1,," in path.read_text()
    assert {*read_prices(path, "aws", CATALOG.types).offers} == {*listed.offers}


def test_a_refreshed_region_has_what_its_list_tells_and_the_others_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "prices-aws.csv").write_text(
        "# source: a test\n# as_of: 2026-01-02\n# complete: eu-west-1 eu-west-2\n"
        "type,region,price,zones\ng6.12xlarge,eu-west-1,5.1,euw1-az1:2.5\n"
    )
    known = catalog(tmp_path)
    regions = {offer.region for offer in unlisted_offers(known, known.types["aws", "g6.12xlarge"])}
    assert "us-east-1" in regions
    assert not regions & {"eu-west-1", "eu-west-2"}


def test_each_type_of_aws_is_in_one_file() -> None:
    rows = read_rows(SHIPPED / "types-aws.csv")
    names = [row["type"] for row in rows]
    assert len(set(names)) == len(names) == 1337
    assert not {*names} & {name for (_, name), each in CATALOG.types.items() if each.surveyed}


@pytest.mark.parametrize("words", ["--help", "validate --help"])
def test_help_reads_no_list(words: str) -> None:
    code = (
        "import sys; from orch.cli.main import main; sys.argv = ['orch', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('loaded' if 'orch.catalog.load' in sys.modules else 'nothing', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "nothing"
