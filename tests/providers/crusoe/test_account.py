"""The client, and the simulated project as the published rules have it."""

from __future__ import annotations

import re

import httpx
import pytest
from kit.clouds.crusoe_lab import H200, IB, LOCATION, Lab, spec

from orch.components.cloud.rest.client import query_text
from orch.components.cloud_errors import CloudRefused
from orch.components.crusoe.account.client import DISK, INSTANCE, PARTITION, CrusoeClient
from orch.components.crusoe.account.errors import ERRORS, CrusoeRefused, category, plain
from orch.components.crusoe.account.facts import Lookups
from orch.components.crusoe.account.login import Login, open_login, signature
from orch.rehearsal.scenario import Failure
from orch.spec.models.backends.crusoe import CrusoeSettings


def test_a_request_is_signed_as_crusoes_own_client_signs_it() -> None:
    """The vector is what crusoecloud/client-go auth/v1 makes of this request."""
    query = query_text({"states": "STATE_RUNNING", "names": "a b,c"})
    assert query == "names=a+b%2Cc&states=STATE_RUNNING"
    path = "/v1/projects/p1/compute/vms/instances"
    signed = signature("c2VjcmV0LWtleS0xMjM0", "GET", path, query, "2026-01-02T03:04:05Z")
    assert signed == "4Uh_3g4VsHsaIISVTLa4Ye0sMWoSQxW7UPEuTM8bNoQ"


@pytest.mark.parametrize(
    ("status", "text", "meaning"),
    [
        (None, "out_of_stock: the requested resource is out of stock", "capacity"),
        (None, "internal_error: try later", "transient"),
        (None, "bad_request: no such image", "invalid"),
        (400, "bad_request: quota h100 exceeded", "quota"),
        (400, "bad_request: name", "invalid"),
        (401, "bad_credential", "credentials"),
        (403, "unauthorized", "permission"),
        (404, "not_found", "gone"),
        (409, "partition is in use", "conflict"),
        (429, "too_many_requests", "rate"),
        (503, "internal_error", "transient"),
    ],
)
def test_an_error_is_of_a_category(status: int | None, text: str, meaning: str) -> None:
    assert category(status, text) == meaning


def test_what_people_read_of_an_rpc_error_is_its_description() -> None:
    assert plain("rpc error: code = NotFound desc = no such disk") == "no such disk"
    assert plain("no such disk") == "no such disk"


@pytest.mark.parametrize("wrong", ["key", "secret", "project"])
def test_wrong_credentials_are_told(lab: Lab, wrong: str) -> None:
    cloud = lab.cloud
    parts = {"key": cloud.access_key, "secret": cloud.secret_key, "project": cloud.project}
    parts[wrong] = parts[wrong][::-1]
    client = CrusoeClient(Login(parts["key"], parts["secret"], parts["project"], lab.url), pause_s=0.01)
    with pytest.raises(CrusoeRefused) as refused:
        list(client.all(DISK))
    client.close()
    assert refused.value.category == ("permission" if wrong == "project" else "credentials")
    assert refused.value.code == ("ORCH304" if wrong == "project" else "ORCH303")


def test_a_request_without_a_signature_or_with_an_old_one_is_refused(lab: Lab) -> None:
    assert httpx.get(f"{lab.url}/capacities").status_code == 401
    old = signature(lab.cloud.secret_key, "GET", "/v1/capacities", "", "2020-01-01T00:00:00Z")
    headers = {
        "X-Crusoe-Timestamp": "2020-01-01T00:00:00Z",
        "Authorization": f"Bearer 1.0:{lab.cloud.access_key}:{old}",
    }
    answer = httpx.get(f"{lab.url}/capacities", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "401")
    assert "too old" in answer.json()["message"]


def test_a_read_is_tried_again_and_a_change_is_one_call(lab: Lab) -> None:
    lab.cloud.turn(failures=(Failure(code="503", action="listCapacities", nth=1),))
    assert lab.client.stock()[H200, LOCATION] == 2 * 1024
    assert lab.asked("listCapacities") == 2
    lab.cloud.turn(failures=(Failure(code="503", action="create ib-partition", nth=1),))
    with pytest.raises(CrusoeRefused) as refused:
        lab.partition()
    assert refused.value.category == "transient"
    assert lab.asked("create ib-partition") == 1


def test_slices_of_networks_and_stock_go_down_together(lab: Lab) -> None:
    lab.cloud.turn(capacity={f"{H200}@h200-us-east1-1": 3, f"{H200}@h200-us-east1-2": 1})

    def left() -> tuple[int, int]:
        (network,) = [each for each in lab.client.ib_networks() if each.id == IB]
        assert network.room(H200, 8) == network.slices[H200] // 8
        return network.slices[H200], lab.client.stock()[H200, LOCATION]

    assert left() == (24, 32)
    lab.instance("a", spec(lab.subnet(), lab.partition()))
    assert left() == (16, 24)


def test_a_vm_out_of_stock_is_accepted_and_its_operation_fails(lab: Lab) -> None:
    lab.cloud.turn(capacity={H200: 0})
    body = {"name": "a", "ssh_public_key": "k", **spec(lab.subnet(), lab.partition())}
    resource, operation = lab.client.create(INSTANCE, body)
    with pytest.raises(CrusoeRefused) as refused:
        lab.client.settle(INSTANCE, operation, "make it", for_s=30)
    assert refused.value.category == "capacity"
    error = ERRORS.read(refused.value.text())
    assert error is not None
    assert error.verdict == "next"
    while lab.client.get(INSTANCE, resource) is not None:
        pass
    assert lab.cloud.instances() == {}


def test_an_unknown_operation_is_refused_as_somebody_elses(lab: Lab) -> None:
    assert lab.client.operation(INSTANCE, "nobodys", "see")  # there is nothing to wait for


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"type": "c1a.2x", "image": "ubuntu22.04:latest"}, "has no host channel adapters"),
        ({"location": "eu-iceland1-a"}, "is in us-east1-a"),
        ({"image": "ubuntu12.04:latest"}, "image ubuntu12.04:latest is not known"),
        ({"startup_script": "#!/bin/bash\necho grüße"}, "ASCII"),
        ({"startup_script": "#!/bin/bash\n" + "x" * 64_000}, "at most 64000 characters"),
        ({"spot": True}, "Extra inputs are not permitted"),
    ],
)
def test_what_a_vm_cannot_be_is_refused(lab: Lab, change: dict[str, object], said: str) -> None:
    with pytest.raises(CrusoeRefused) as refused:
        lab.instance("a", {**spec(lab.subnet(), lab.partition()), **change})
    assert refused.value.category == "invalid"
    assert said in str(refused.value.detail)


def test_a_partition_with_vms_is_in_use_and_goes_after_them(lab: Lab) -> None:
    partition = lab.partition()
    resource = lab.instance("a", spec(lab.subnet(), partition))
    with pytest.raises(CrusoeRefused) as refused:
        lab.client.delete(PARTITION, partition)
    assert refused.value.category == "conflict"
    lab.client.remove(INSTANCE, resource, for_s=30)
    lab.client.remove(PARTITION, partition, for_s=30)
    assert set(lab.cloud.everything().values()) == {"network", "subnet"}


def test_machines_are_listed_page_by_page(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orch.components.crusoe.account.client.PAGE", 2)
    subnet, partition = lab.subnet(), lab.partition()
    made = {lab.instance(f"vm-{number}", spec(subnet, partition)) for number in range(5)}
    assert {row["id"] for row in lab.client.all(INSTANCE)} == made
    assert lab.asked("list instance") == 3


def test_facts_tell_what_a_plan_asks(lab: Lab) -> None:
    lab.cloud.turn(quotas={"h200-141gb-sxm-ib": 16})
    facts = lab.client.facts(
        Lookups(H200, LOCATION, "ubuntu22.04-nvidia-sxm-docker:latest", None, ["nobodys"], quota=True)
    )
    assert facts.image is not None
    assert facts.image.name == "ubuntu22.04-nvidia-sxm-docker:20260801"
    assert facts.missing == ("nobodys",)
    assert facts.quota is not None
    assert (facts.quota.limit, facts.quota.free) == (16, 16)


def test_a_reservation_is_listed_with_what_runs_in_it_and_holds_no_more(lab: Lab) -> None:
    assert lab.client.reservations() == ()
    lab.cloud.add_reservation("r-1", H200, LOCATION, 1)
    body = spec(lab.subnet(), lab.partition(), reservation_specification={"id": "r-1"})
    first = lab.instance("a", body)
    known = next(iter(lab.client.reservations() or ()))
    assert (known.id, known.quantity, known.used, known.locations) == ("r-1", 8, 8, (LOCATION,))
    assert known.projects == (lab.client.project,)
    _, operation = lab.client.create(INSTANCE, {"name": "b", "ssh_public_key": "k", **body})
    with pytest.raises(CrusoeRefused) as refused:
        lab.client.settle(INSTANCE, operation, "create b", for_s=30)
    assert refused.value.category == "capacity"
    with pytest.raises(CrusoeRefused) as refused:
        lab.instance("c", {**body, "reservation_specification": {"id": "r-2"}})
    assert refused.value.category == "gone"
    # What is off takes nothing of it, and is told as off.
    assert lab.client.ended({first}) == set()
    lab.cloud.shut_down(first)
    assert lab.client.ended({first, "another"}) == {first}
    assert [each.used for each in lab.client.reservations() or ()] == [0]
    lab.cloud.turn(denied=["listReservations"])
    assert lab.client.reservations() is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CRUSOE_ACCESS_KEY_ID", "k\u00e9y\n", "the access key of Crusoe does not read"),
        ("CRUSOE_SECRET_KEY", "not base64", "the secret key of Crusoe does not read"),
        ("CRUSOE_DEFAULT_PROJECT", "a/b", "the project of Crusoe does not read"),
        ("CRUSOE_API_ENDPOINT", "api.cloud.crusoe.ai", "the address of Crusoe's API does not read"),
    ],
)
def test_a_login_that_cannot_be_one_is_told_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    for key in ("CRUSOE_ACCESS_KEY_ID", "CRUSOE_SECRET_KEY", "CRUSOE_DEFAULT_PROJECT"):
        monkeypatch.setenv(key, "abcd")
    monkeypatch.delenv("CRUSOE_API_ENDPOINT", raising=False)
    assert open_login(CrusoeSettings()).url.startswith("https://")
    monkeypatch.setenv(name, value)
    with pytest.raises(CloudRefused, match=words) as refused:
        open_login(CrusoeSettings())
    assert refused.value.code == "ORCH303"
    assert name in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("date", "words"),
    [
        ("Thu, 01 Jan 2026 00:00:00 GMT", r"clock is \d{4,} s ahead of Crusoe's"),
        ("Fri, 01 Jan 2100 00:00:00 GMT", r"clock is \d{4,} s behind Crusoe's"),
        ("never", "the timestamp is too old$"),
    ],
)
def test_a_clock_that_is_off_is_told_beside_a_signature_that_is_refused(date: str, words: str) -> None:
    def answered(request: httpx.Request) -> httpx.Response:
        problem = {"code": "401", "message": "bad_credential: the timestamp is too old"}
        return httpx.Response(401, json=problem, headers={"Date": date})

    client = CrusoeClient(Login("k", "c2VjcmV0", "p"), transport=httpx.MockTransport(answered))
    with pytest.raises(CrusoeRefused) as refused:
        client.stock()
    assert re.search(words, refused.value.detail or "")
    client.close()
