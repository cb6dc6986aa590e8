"""Quotas that cannot be read: a note of the plan, not its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from orch.components.cloud.quotas import if_readable, unread_findings
from orch.components.cloud_errors import CloudRefused
from orch.components.crusoe.account import client as crusoe
from orch.components.crusoe.account.facts import Lookups as CrusoeLookups
from orch.components.crusoe.account.login import Login
from orch.components.nebius.account.client import NebiusClient
from orch.components.nebius.account.facts import Lookups as NebiusLookups
from orch.components.runpod.account import client as runpod
from orch.rehearsal.crusoe.account import CrusoeCloud
from orch.rehearsal.http_service import HttpService
from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.nebius.service import Session, sdk_at
from orch.rehearsal.runpod.account import RunpodCloud

Unread = Callable[[], tuple[str, ...]]


@contextmanager
def crusoe_project(folder: Path) -> Iterator[Unread]:
    cloud = CrusoeCloud.create(folder / "crusoe.db")
    cloud.turn(denied=("listQuotas",))
    service = HttpService(cloud)
    login = Login(cloud.access_key, cloud.secret_key, cloud.project, f"{service.url}/v1")
    image = "ubuntu22.04-nvidia-sxm-docker:latest"
    lookups = CrusoeLookups("h200-141gb-sxm-ib.8x", "us-east1-a", image, None, (), quota=True)
    yield lambda: crusoe.CrusoeClient(login, pause_s=0.0).facts(lookups).unread
    service.stop()


@contextmanager
def nebius_project(folder: Path) -> Iterator[Unread]:
    cloud = NebiusCloud.create(folder / "nebius.db")
    cloud.turn(denied=("QuotaAllowanceService.GetByName",))
    client = NebiusClient(Session(sdk_at(cloud)))
    lookups = NebiusLookups(
        "gpu-h100-sxm_8gpu-128vcpu-1600gb",
        "eu-north1",
        None,
        "ubuntu24.04-cuda13.0",
        None,
        (),
        (),
        quota=True,
    )
    yield lambda: client.facts("project-e00eu-north1", lookups).unread


@contextmanager
def runpod_account(folder: Path) -> Iterator[Unread]:
    cloud = RunpodCloud.create(folder / "runpod.db")
    cloud.turn(denied=("graphql",))
    service = HttpService(cloud)
    client = runpod.RunpodClient(runpod.Login(cloud.api_key, service.url), pause_s=0.0)

    def ask() -> tuple[str, ...]:
        unread: list[str] = []
        assert if_readable(unread, client.money) is None
        return tuple(unread)

    yield ask
    service.stop()


@pytest.mark.parametrize("account", [crusoe_project, nebius_project, runpod_account])
def test_a_quota_that_may_not_be_read_is_a_note(
    account: Callable[[Path], AbstractContextManager[Unread]], tmp_path: Path
) -> None:
    with account(tmp_path) as unread:
        (note,) = unread_findings(unread())
    assert (note.code, note.severity.value) == ("ORCH314", "note")
    assert "cannot ask for the " in str(note.detail)


def test_refused_credentials_are_no_note() -> None:
    def refuse() -> None:
        raise CloudRefused("the key is not known", code="ORCH303")

    with pytest.raises(CloudRefused):
        if_readable([], refuse)
