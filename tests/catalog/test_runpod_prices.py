"""`orch offers refresh runpod`, against a simulated account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.support import Folder, Said

from orch.catalog.load import catalog
from orch.catalog.runpod.prices import country, gpu_ids
from orch.rehearsal.http_service import HttpService
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.scenario import Failure

FLEET = "type: fleet\nname: probe\nnodes: 0..1\nbackends: [runpod]\nresources: {gpu: %s}\n"


class Account:
    """An account, where it is served, and a user's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cloud = RunpodCloud.create(folder / "runpod.db")
        self.service = HttpService(self.cloud)
        (folder / "user").mkdir()

    def orch(self, *words: str, key: str | None = None, url: str | None = None) -> Said:
        variables = {
            "ORCHCTL_CATALOG": str(self.folder / "user"),
            "RUNPOD_API_KEY": self.cloud.api_key if key is None else key,
            "RUNPOD_REST_V2_URL": f"{self.service.url}/v2" if url is None else url,
        }
        return Folder(self.folder).orch("offers", *words, env=variables)

    def offers(self, gpu: str) -> list[tuple[str, str, str, float]]:
        (self.folder / "fleet.yml").write_text(FLEET % gpu)
        said = self.orch("fleet.yml", "--json")
        assert (said.code, said.err) == (0, "")
        return [
            (row["instance_type"], row["region"], row["zone"], row["price"])
            for row in said.json["fleets"][0]["offers"]
        ]


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    account = Account(tmp_path)
    yield account
    account.service.stop()


def test_prices_and_data_centers_come_from_the_account(account: Account) -> None:
    said = account.orch("refresh", "runpod")
    assert (said.code, said.err) == (0, "")
    assert f"in {account.folder / 'user' / 'prices-runpod.csv'}" in said.out.replace("\n", "")
    assert account.offers("H100-SXM:8") == [
        ("8x_H100-SXM_SECURE", "CA", "CA-MTL-1", 26.32),
        ("8x_H100-SXM_SECURE", "RO", "EU-RO-1", 26.32),
        ("8x_H100-SXM_SECURE", "US", "US-KS-2", 26.32),
        ("8x_H100-SXM_SECURE", "US", "US-TX-3", 26.32),
    ]
    counts = [call.params["count"] for call in account.cloud.calls]
    assert counts == ["1", "2", "4", "8"]


def test_what_is_sold_out_is_an_offer_without_a_place(account: Account) -> None:
    account.cloud.turn(capacity={"NVIDIA B200": 0})
    assert account.orch("refresh", "runpod").code == 0
    assert account.offers("B200:8") == [("8x_B200_SECURE", None, None, 54.32)]


def test_one_region_leaves_the_others_as_they_were(account: Account) -> None:
    assert account.orch("refresh", "runpod", "--region", "US").code == 0
    found = account.offers("H100-SXM:1")
    assert ("1x_H100-SXM_SECURE", "US", "US-KS-2", 3.29) in found
    assert ("1x_H100-SXM_SECURE", "NL", None, 3.99) in found
    said = account.orch("refresh", "runpod", "--region", "MARS")
    assert said.code == 5
    assert "RunPod has nothing in MARS" in said.err
    assert "it is in CA, RO, US" in said.err


@pytest.mark.parametrize(
    ("words", "key", "url", "message"),
    [
        ((), "", None, "there is no API key to ask RunPod for prices with"),
        ((), "rpa_other", None, "RunPod refused the API key"),
        ((), None, "http://127.0.0.1:9", "RunPod cannot be reached"),
        ((), None, "nowhere", "RunPod cannot be reached"),
        (("--profile", "me"), None, None, "RunPod has no profiles"),
    ],
)
def test_what_is_missing_is_told_and_nothing_is_written(
    account: Account, words: tuple[str, ...], key: str | None, url: str | None, message: str
) -> None:
    said = account.orch("refresh", "runpod", *words, key=key, url=url)
    assert said.code == 5
    assert message in said.err
    assert "rpa_other" not in said.err
    assert list((account.folder / "user").iterdir()) == []


def test_a_refusal_of_the_service_is_told(account: Account) -> None:
    account.cloud.turn(failures=(Failure(code="500", action="listGpuTypes", nth=1, message="we are down"),))
    said = account.orch("refresh", "runpod")
    assert said.code == 5
    assert "RunPod refused a request for prices" in said.err
    assert "we are down" in said.err


def test_each_type_has_a_gpu_of_runpods_api() -> None:
    names = {each.name for each in catalog().types.values() if each.backend == "runpod"}
    assert {name.partition("x_")[2].removesuffix("_SECURE") for name in names} == set(gpu_ids())


@pytest.mark.parametrize(
    ("center", "region"),
    [
        ("US-KS-2", "US"),
        ("CA-MTL-1", "CA"),
        ("EU-RO-1", "RO"),
        ("EUR-IS-1", "IS"),
        ("AP-JP-1", "JP"),
        ("XX", "XX"),
    ],
)
def test_a_data_center_lies_in_a_country(center: str, region: str) -> None:
    assert country(center) == region
