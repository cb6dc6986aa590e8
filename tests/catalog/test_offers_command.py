"""`orch offers` as a person and a pipeline call it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit.support import Folder, Said

GOLDEN = Path(__file__).parent / "golden"

# With UPDATE_GOLDEN=1 in the environment the files are written instead of compared.
REQUESTS = {
    "40GB..80GB:1..8": "memory-range",
    "H100:8": "h100",
    "nvidia:1..8": "vendor",
    "24GB": "memory",
    "A100:80GB:8": "a100",
}


def fleet(**properties: str) -> str:
    lines = {"type": "fleet", "name": "probe", "nodes": "1", **properties}
    return "".join(f"{key}: {value}\n" for key, value in lines.items())


def offers(folder: Path, text: str, *words: str) -> Said:
    (folder / "fleet.yml").write_text(text)
    (folder / "user").mkdir(exist_ok=True)
    return Folder(folder).orch("offers", "fleet.yml", *words, env={"ORCHCTL_CATALOG": str(folder / "user")})


def held_equal(said: str, name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(said)
    assert said == path.read_text()


@pytest.mark.parametrize("gpu", REQUESTS)
def test_offers_of_aws(tmp_path: Path, gpu: str) -> None:
    said = offers(
        tmp_path, fleet(backends="[aws]", resources=f'{{gpu: "{gpu}"}}'), "--explain", "--limit", "12"
    )
    assert (said.code, said.err) == (0, "")
    held_equal(said.out, REQUESTS[gpu])


@pytest.mark.parametrize(
    ("gpu", "first", "price", "region"),
    [
        ("H100-SXM:8", "8x_H100-SXM_SECURE", 31.92, "AU"),
        ("B200:8", "8x_B200_SECURE", 54.32, None),  # no source tells where
        ("A100-SXM:2", "2x_A100-80GB-SXM_SECURE", 3.58, None),
        ("L4:8", "8x_L4_SECURE", None, None),
    ],
)
def test_offers_of_runpod_are_pods_at_the_price_of_so_many_gpus(
    tmp_path: Path, gpu: str, first: str, price: float | None, region: str | None
) -> None:
    text = fleet(backends="[runpod]", resources=f"{{gpu: {gpu}}}")
    said = offers(tmp_path, text, "--json")
    assert (said.code, "this is read as `0..1`" in said.err) == (0, True), said.err
    row = said.json["fleets"][0]["offers"][0]
    assert (row["instance_type"], row["price"], row["region"]) == (first, price, region)


def test_json_holds_all_offers_in_the_same_order(tmp_path: Path) -> None:
    said = offers(tmp_path, fleet(backends="[aws]", resources='{gpu: "H100:8"}'), "--json")
    assert said.code == 0
    assert said.json["schema"] == 1
    (found,) = said.json["fleets"]
    assert found["name"] == "probe"
    assert found["file"] == "fleet.yml"
    assert found["wanted"]["gpu"] == "H100:8"
    assert found["total"] == len(found["offers"]) > 20
    assert found["near_misses"] == []
    first = found["offers"][0]
    assert first == {
        "backend": "aws",
        "region": "us-east-1",
        "zone": "use1-az1",
        "local_zone": False,
        "instance_type": "p5.48xlarge",
        "arch": "x86",
        "cpus": 192,
        "memory_mib": 2048 * 1024,
        "gpus": {"vendor": "nvidia", "name": "H100", "count": 8, "memory_mib": 80 * 1024},
        "spot": False,
        "price": 55.04,
        "price_of": None,
        "listed": True,
        "no_room": [],
    }
    (source,) = said.json["sources"]
    assert source["backend"] == "aws"
    assert source["as_of"] == "late 2025 or newer"
    assert source["refreshed"] is False


def test_json_with_a_limit_and_reasons(tmp_path: Path) -> None:
    text = fleet(backends="[aws]", resources='{gpu: "A100:80GB:8"}')
    said = offers(tmp_path, text, "--json", "--limit", "2", "--explain")
    (found,) = said.json["fleets"]
    assert len(found["offers"]) == 2 < found["total"]
    assert len(found["near_misses"]) == 2
    assert all(miss["reasons"] and miss["reasons"][0]["found"] for miss in found["near_misses"])


def test_nothing_fits_is_told_with_the_place_and_the_nearest_types(tmp_path: Path) -> None:
    said = offers(tmp_path, fleet(backends="[aws]", max_price="50", resources='{gpu: "H100:8"}'))
    assert said.code == 5
    assert "fleet.yml:5:12: error ORCH200: no offer fits the fleet 'probe'" in said.err
    assert "nearest is aws p5.48xlarge: price: $55.04" in said.err
    assert "p5.48xlarge" in said.out
    assert "price: $55.04" in said.out
    assert "(wanted at most $50.00)" in said.out


def test_nothing_fits_in_json_too(tmp_path: Path) -> None:
    said = offers(tmp_path, fleet(backends="[aws]", resources='{gpu: "MI300X:8"}'), "--json")
    assert said.code == 5
    (found,) = said.json["fleets"]
    assert found["offers"] == []
    nearest = found["near_misses"][0]
    assert (nearest["backend"], nearest["instance_type"]) == ("crusoe", "mi300x-192gb-ib.8x")
    assert nearest["reasons"] == [{"constraint": "backend", "wanted": "aws", "found": ["crusoe"]}]
    assert [each["code"] for each in said.json["diagnostics"]] == ["ORCH200"]


def test_names_the_catalogue_does_not_know_are_told_where_they_are(tmp_path: Path) -> None:
    text = (
        "type: fleet\nname: probe\nnodes: 1\nbackends: [aws]\nregions: [us-esat-1, us-east-1]\n"
        "instance_types: [p5.48xlrge, p5.48xlarge, 'x9*']\nresources: {gpu: 'H101,H100:8'}\n"
    )
    said = offers(tmp_path, text)
    assert said.code == 0
    assert "fleet.yml:5:11: warning ORCH205: no offer is in a region 'us-esat-1'" in said.err
    assert "hint: did you mean 'us-east-1'?" in said.err
    assert "fleet.yml:6:18: warning ORCH202: the catalogue has no type 'p5.48xlrge'" in said.err
    assert "hint: did you mean 'p5.48xlarge'?" in said.err
    assert "fleet.yml:6:43: warning ORCH202: no type in the catalogue fits 'x9*'" in said.err
    assert "fleet.yml:7:" in said.err
    assert "warning ORCH203: the catalogue has no GPU 'H101'" in said.err


def test_an_aws_zone_name_is_told_to_mean_all_zones_of_its_region(tmp_path: Path) -> None:
    text = fleet(backends="[aws]", availability_zones="[us-west-2a]", resources='{gpu: "H100:8"}')
    said = offers(tmp_path, text)
    assert said.code == 0
    assert "fleet.yml:5:22: note ORCH206: 'us-west-2a' is another zone in each AWS account" in said.err
    assert "usw2-az1" in said.out
    assert "usw2-az2" in said.out


def test_a_fleet_of_containers_rents_nothing(tmp_path: Path) -> None:
    said = offers(tmp_path, fleet(backends="[local]"))
    assert said.code == 0
    assert "probe: its nodes are containers on this machine, nothing is rented" in said.out


def test_without_backends_all_clouds_with_a_driver_are_searched(tmp_path: Path) -> None:
    said = offers(tmp_path, fleet(resources='{gpu: "H100:8"}'), "--json")
    assert said.json["fleets"][0]["wanted"]["backends"] == [
        "aws", "azure", "crusoe", "gcp", "lambda", "nebius", "oci", "runpod",
    ]  # fmt: skip


def test_without_backends_those_of_the_project_are_searched(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("backends:\n  - type: aws\n  - type: local\n")
    said = offers(tmp_path, fleet(resources='{gpu: "H100:8"}'), "--json")
    assert said.json["fleets"][0]["wanted"]["backends"] == ["aws"]


def test_several_fleets_of_a_file_are_each_searched(tmp_path: Path) -> None:
    one = fleet(backends="[aws]", resources='{gpu: "H100:8"}')
    other = fleet(backends="[aws]", resources='{gpu: "MI300X:8"}').replace("probe", "other")
    said = offers(tmp_path, f"{one}---\n{other}", "--json")
    assert said.code == 5
    assert [(each["name"], each["total"] > 0) for each in said.json["fleets"]] == [
        ("probe", True),
        ("other", False),
    ]


def test_a_file_with_a_mistake_ends_with_3(tmp_path: Path) -> None:
    said = offers(tmp_path, fleet(resources='{gpu: "H100:800"}'))
    assert said.code == 3
    assert "ORCH121" in said.err
    assert said.out == ""


def test_a_file_without_a_fleet_ends_with_3(tmp_path: Path) -> None:
    said = offers(tmp_path, "type: task\nname: probe\ncommands: [date]\n")
    assert said.code == 3
    assert "there is no fleet to search offers for" in said.err


def test_a_refreshed_list_is_used_and_told(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "prices-aws.csv").write_text(
        "# source: a test\n# as_of: 2026-01-02\ntype,region,price,zones\np5.48xlarge,us-east-1,50,use1-az4\n"
    )
    said = offers(tmp_path, fleet(backends="[aws]", resources='{gpu: "H100:8"}'))
    assert "$50.00" in said.out
    assert "aws 2026-01-02" in said.out


def test_help_shows_how_to_ask_and_how_to_refresh(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("offers", "--help")
    assert said.code == 0
    for word in ("FILE", "--explain", "--json", "--limit", "orch offers refresh"):
        assert word in said.out


def test_a_fleet_of_hosts_rents_nothing(tmp_path: Path) -> None:
    hosts = "type: fleet\nname: probe\nssh_config:\n  user: me\n  hosts: [10.0.0.1]\n"
    said = offers(tmp_path, hosts, "--json")
    assert said.code == 0
    assert said.json["fleets"][0]["skipped"] == "its hosts are there already, nothing is rented"
