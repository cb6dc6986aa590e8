"""`orch offers refresh lambda`, against a simulated account."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from kit.clouds.strangers import answering
from kit.support import Folder, Said

from orch.catalog.errors import RefreshFailed
from orch.catalog.lambda_ import prices
from orch.catalog.load import catalog
from orch.rehearsal.http_service import HttpService
from orch.rehearsal.lambda_.account import LambdaCloud

FLEET = "type: fleet\nname: probe\nnodes: 0..1\nbackends: [lambda]\nresources: {gpu: %s}\nregions: [%s]\n"
H100 = "gpu_8x_h100_sxm5"


class Account:
    """An account, where it is served, and a user's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cloud = LambdaCloud.create(folder / "lambda.db")
        self.service = HttpService(self.cloud)
        (folder / "user").mkdir()

    def orch(self, *words: str, key: str | None = None, url: str | None = None) -> Said:
        variables = {
            "ORCHCTL_CATALOG": str(self.folder / "user"),
            "LAMBDA_API_KEY": self.cloud.api_key if key is None else key,
            "LAMBDA_API_ENDPOINT": f"{self.service.url}/api/v1" if url is None else url,
        }
        return Folder(self.folder).orch("offers", *words, env=variables)


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    account = Account(tmp_path)
    yield account
    account.service.stop()


def test_prices_come_from_the_account_and_what_has_no_capacity_is_told(account: Account) -> None:
    account.cloud.turn(capacity={f"{H100}@us-east-1": 0})
    said = account.orch("refresh", "lambda")
    assert (said.code, said.err) == (0, "")
    assert f"in {account.folder / 'user' / 'prices-lambda.csv'}" in said.out.replace("\n", "")
    (account.folder / "fleet.yml").write_text(FLEET % ("H100-SXM:8", "us-east-1, us-west-1"))
    said = account.orch("fleet.yml", "--json")
    assert (said.code, said.err) == (0, "")
    offers = said.json["fleets"][0]["offers"]
    assert {(row["instance_type"], row["region"], row["price"]) for row in offers} == {
        (H100, "us-east-1", 31.92),
        (H100, "us-west-1", 31.92),
    }
    assert {row["region"] for row in offers if row["no_room"]} == {"us-east-1"}


@pytest.mark.parametrize(
    ("words", "key", "url", "message"),
    [
        ((), "", None, "there is no API key to ask Lambda for prices with"),
        ((), "other", None, "Lambda refused the API key"),
        ((), "k\u00e9y", None, "the API key of Lambda does not read"),
        (
            (),
            None,
            "http://127.0.0.1:9",
            "127.0.0.1:9/instance-types: error: Lambda cannot be reached",
        ),
        (("--profile", "me"), None, None, "Lambda has no profiles"),
        (("--region", "moon-1"), None, None, "Lambda has nothing in moon-1"),
    ],
)
def test_what_is_missing_is_told_and_nothing_is_written(
    account: Account, words: tuple[str, ...], key: str | None, url: str | None, message: str
) -> None:
    said = account.orch("refresh", "lambda", *words, key=key, url=url)
    assert said.code == 5
    assert message in said.err
    assert list((account.folder / "user").iterdir()) == []


@pytest.mark.parametrize(
    "answer",
    ["<html>", "[]", "{}", '{"data": null}', '{"data": {"gpu_8x_h100_sxm5": {"price": 1}}}'],
)
def test_an_answer_that_is_not_the_apis_is_told(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setenv("LAMBDA_API_KEY", "k")
    with answering(200, answer) as url:
        monkeypatch.setenv("LAMBDA_API_ENDPOINT", f"{url}/api/v1")
        with pytest.raises(RefreshFailed, match="answers otherwise than its documentation says"):
            prices.fetch(
                list(catalog().types.values()), regions=(), profile=None, now=datetime.now(timezone.utc)
            )
