"""The backend `newcloud`: what remains to be written, and what it has to do then.

A test of what remains fails as expected: `pytest -ra` lists them, each with the file to write. When you have
written that part, its test passes, which is an error until you remove the line `@remains`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orch.catalog.load import catalog
from orch.components.newcloud.account.client import Login, NewcloudClient
from orch.components.newcloud.account.errors import CODES, NewcloudRefused
from orch.components.newcloud.plan import IMAGE
from orch.components.newcloud.plugin import InstanceHandler, NewcloudGang
from orch.components.registry.backends import backend
from orch.components.registry.planning import compile_fleet
from orch.components.request import PlanRequest, PriorState
from orch.rehearsal.http_service import HttpService
from orch.rehearsal.newcloud.account import NewcloudAccount
from orch.rehearsal.newcloud.api.errors import not_there
from orch.rehearsal.newcloud.api.routes import SHOWS, route
from orch.rehearsal.newcloud.data.tables import kinds
from orch.rehearsal.simulators import accounts
from orch.spec.findings import PlanError, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends import settings_model


def remains(part: str, *raises: type[Exception]) -> pytest.MarkDecorator:
    return pytest.mark.xfail(reason=part, raises=(NotImplementedError, *raises), strict=True)


def spec() -> dict[str, Any]:
    """A machine of the first type of the simulated account."""
    kind = next(iter(kinds().values()), None)
    if kind is None:
        raise NotImplementedError("data/types.csv of the simulated account")
    return {"type": kind.name, "region": kind.regions[0], "image": IMAGE, "ssh_from": ["198.51.100.0/24"]}


@pytest.fixture
def account(tmp_path: Path) -> NewcloudAccount:
    return NewcloudAccount.create(tmp_path / "newcloud.db")


@pytest.fixture
def client(account: NewcloudAccount) -> Iterator[NewcloudClient]:
    service = HttpService(account)
    client = NewcloudClient(Login(account.api_key, f"{service.url}/v1"), pause_s=0.01)
    yield client
    client.close()
    service.stop()


def test_it_is_registered() -> None:
    assert backend("newcloud").settings is settings_model("newcloud")
    assert accounts()["newcloud"].hooks.account is NewcloudAccount


@remains("types.csv and prices.csv of the catalogue: the machines, with their source", AssertionError)
def test_the_catalogue_has_machines() -> None:
    assert "newcloud" in catalog().lists
    assert catalog().lists["newcloud"].offers


@remains("rehearsal: data/types.csv: the types of the simulated account", AssertionError)
def test_the_simulated_account_has_the_types_of_the_catalogue() -> None:
    known = {name for cloud, name in catalog().types if cloud == "newcloud"}
    assert known == set(kinds()) != set()


@remains("account/errors.py: the codes for a lack of capacity and a used-up quota", AssertionError)
def test_codes_of_refusals_have_a_meaning() -> None:
    assert {"capacity", "quota"} <= set(CODES.values())


@remains("account/client.py and rehearsal: api/errors.py: the body of a refusal")
def test_a_refusal_is_read(client: NewcloudClient) -> None:
    assert client.code(not_there("it").document())
    with pytest.raises(NewcloudRefused) as caught:
        client.call("ask", "GET", "/nowhere")
    assert caught.value.category == "gone"


@remains("rehearsal: api/routes.py: the routes of the API; SHOWS: those that show machines", AssertionError)
def test_the_simulated_account_has_routes() -> None:
    assert set() != SHOWS <= {each.action for each in route.all}


@remains("account/client.py: list machines; their addresses as soon as they have some")
def test_machines_are_listed(client: NewcloudClient) -> None:
    assert client.machines() == []
    client.launch("one", spec(), "#cloud-config\n")
    client.machines()
    (seen,) = client.machines()
    assert (seen.name, seen.type, seen.region) == ("one", spec()["type"], spec()["region"])
    assert seen.status == "running"
    assert seen.address
    assert seen.public_address


@remains("account/client.py: get a machine; None if it is gone")
def test_a_machine_is_read(client: NewcloudClient) -> None:
    assert client.machine("no-such") is None
    machine = client.launch("one", spec(), "#cloud-config\n")
    seen = client.machine(machine)
    assert seen is not None
    assert (seen.id, seen.name) == (machine, "one")


@remains("account/client.py: create a machine, with its image, user data and who may reach SSH")
def test_a_machine_is_created(client: NewcloudClient, account: NewcloudAccount) -> None:
    machine = client.launch("one", spec(), "#cloud-config\n")
    assert account.instances()[machine]["user_data"] == "#cloud-config\n"
    account.turn(capacity={spec()["type"]: 1})
    with pytest.raises(NewcloudRefused) as caught:
        client.launch("two", spec(), "")
    assert caught.value.category == "capacity"


@remains("account/client.py: delete a machine")
def test_a_machine_is_deleted(client: NewcloudClient, account: NewcloudAccount) -> None:
    machine = client.launch("one", spec(), "")
    client.remove(machine, for_s=5)
    assert account.instances() == {}
    client.delete(machine)


@remains("account/client.py: find a machine image by its name or id")
def test_an_image_is_found(client: NewcloudClient) -> None:
    found = client.image(IMAGE, spec()["region"])
    assert found is not None
    assert client.image(found.id, spec()["region"]) == found
    assert client.image("no-such", spec()["region"]) is None


@remains("account/client.py: ask for types and capacity")
def test_types_and_capacity_are_known(client: NewcloudClient, account: NewcloudAccount) -> None:
    kind = kinds()[spec()["type"]]
    assert client.stock()[kind.name].regions == set(kind.regions)
    assert client.stock()[kind.name].disk_gib == kind.disk_gib
    account.turn(capacity={kind.name: 0})
    assert client.stock()[kind.name].regions == frozenset()


def deployment_of(account: NewcloudAccount) -> Any:
    settings: Any = settings_model("newcloud")
    own = settings(ssh_cidrs=("198.51.100.0/24",))
    fleet = Fleet.model_validate({"type": "fleet", "name": "lab", "nodes": "2", "backends": ["newcloud"]})
    session = accounts()["newcloud"].hooks.session(account, ())
    folder = account.path.parent
    request = PlanRequest(
        fleet, (own,), PriorState(), "abc123", root=folder, folder=folder, session=lambda name: session
    )
    return compile_fleet(request)


@remains("all of the above, and `provisioned = True` in the settings: plan a fleet", PlanError, PlanErrors)
def test_a_fleet_is_planned(account: NewcloudAccount) -> None:
    made = deployment_of(account)
    assert made.pins["backend"] == "newcloud"
    assert made.nodes == ("lab-0", "lab-1")
    assert deployment_of(account).plan == made.plan


@remains("all calls of the client: machines are created once, waited for and deleted")
def test_resources_come_up_and_go(client: NewcloudClient, account: NewcloudAccount) -> None:
    handler = InstanceHandler(lambda: client, pause_s=0.01, settle_s=0.0)
    inputs = {"name": "lab-0", "mark": "p/lab/abc123", "spec": spec(), "user_data": "#cloud-config\n"}
    machine, _ = handler.create(inputs)
    assert handler.create(inputs)[0] == machine
    up = NewcloudGang(lambda: client, pause_s=0.01).wait({"lab-0": machine})
    assert up["lab-0"]["id"] == machine
    account.lose_host(machine)
    assert handler.look(machine, {"status": "running"}) == {"status": "failed"}
    handler.delete(machine, inputs)
    assert account.everything() == {}
