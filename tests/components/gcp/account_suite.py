"""What is asked of a project, with the SDK's own messages as answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1 as compute
from kit.clouds.plan_cases import CATALOG
from kit.clouds.planning import request_of

from orch.components.gcp.account import gather_facts
from orch.components.gcp.account.client import moment
from orch.components.gcp.account.facts import Member
from orch.components.gcp.backend import GcpBackend
from orch.components.gcp.candidates import candidates
from orch.components.request import PriorState
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.gcp import GcpSettings

LINK = "https://www.googleapis.com/compute/v1/projects/acme-ml/"
Answers = dict[tuple[str, str], Callable[..., Any]]


KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43}"


class Client:
    def __init__(self, name: str, answers: Answers, asked: list[str]) -> None:
        self._name, self._answers, self._asked = name, answers, asked

    def __getattr__(self, call: str) -> Callable[..., Any]:
        def answer(**words: Any) -> Any:
            self._asked.append(f"{self._name}.{call}")
            return self._answers[self._name, call](**words)

        return answer


class Account:
    """A project that answers from a table, and keeps what was asked."""

    project = "acme-ml"

    def __init__(self, **more: Callable[..., Any]) -> None:
        self.asked: list[str] = []
        self.answers: Answers = {
            ("InstancesClient", "get_guest_attributes"): missing,
            ("ZonesClient", "list"): lambda **_: (
                [compute.Zone(name=f"us-central1-{z}", region=f"{LINK}regions/us-central1") for z in "abcf"]
                + [compute.Zone(name="us-east4-a", region=f"{LINK}regions/us-east4")]
            ),
            ("MachineTypesClient", "get"): lambda **_: compute.MachineType(name="x"),
            ("NetworkProfilesClient", "get"): lambda **_: compute.NetworkProfile(name="x"),
            ("ImagesClient", "get_from_family"): lambda **words: compute.Image(
                name=f"{words['family']}-v1", disk_size_gb=20
            ),
            ("ImagesClient", "get"): lambda **words: compute.Image(name=words["image"], disk_size_gb=20),
            ("RegionsClient", "get"): lambda **_: compute.Region(
                quotas=[compute.Quota(metric="NVIDIA_A100_GPUS", limit=16, usage=8)]
            ),
            ("ProjectsClient", "get"): lambda **_: compute.Project(
                quotas=[compute.Quota(metric="NETWORKS", limit=15, usage=2)]
            ),
            ("NetworksClient", "get"): lambda **words: compute.Network(
                name=words["network"],
                mtu=8896,
                network_profile=f"{LINK}global/networkProfiles/us-central1-b-vpc-roce"
                if words["network"] == "rdma"
                else "",
            ),
            ("SubnetworksClient", "list"): lambda **_: (
                [
                    compute.Subnetwork(
                        name=f"rdma-{i}",
                        network=f"{LINK}global/networks/rdma",
                        ip_cidr_range=f"10.9.{i}.0/24",
                    )
                    for i in range(8)
                ]
                + [
                    compute.Subnetwork(
                        name="net", network=f"{LINK}global/networks/net", ip_cidr_range="10.8.0.0/24"
                    )
                ]
            ),
            ("FirewallsClient", "list"): lambda **_: [
                compute.Firewall(
                    network=f"{LINK}global/networks/net",
                    direction="INGRESS",
                    allowed=[compute.Allowed(I_p_protocol="tcp"), compute.Allowed(I_p_protocol="udp")],
                )
            ],
            ("RoutersClient", "list"): lambda **_: [
                compute.Router(network=f"{LINK}global/networks/net", nats=[compute.RouterNat(name="nat")])
            ],
        }
        self.answers |= {tuple(key.split("__")): value for key, value in more.items()}  # type: ignore[misc]

    def client(self, name: str) -> Client:
        return Client(name, self.answers, self.asked)


def missing(**_: Any) -> Any:
    raise exceptions.NotFound("not here")


def fleet(**more: Any) -> Fleet:
    base = {"type": "fleet", "name": "ultra", "backends": ["gcp"], "nodes": "2", "placement": "cluster"}
    return Fleet.model_validate(
        {**base, "instance_types": ["a3-ultragpu-8g"], "zones": ["us-central1-b"], **more}
    )


def compiled(account: Account, wanted: Fleet) -> Any:
    settings = GcpSettings()
    (chosen, *_) = candidates(wanted, settings, CATALOG)
    return GcpBackend().deployment(request_of(wanted, settings, session=account), chosen)


def test_a_fleet_is_planned_from_what_the_project_answers() -> None:
    account = Account()
    plan = compiled(account, fleet()).plan
    assert plan.image == (
        "projects/ubuntu-os-accelerator-images/global/images/ubuntu-accelerator-2204-amd64-with-nvidia-570-v1"
    )
    assert plan.pins["image"] == plan.image
    assert "NetworkProfilesClient.get" in account.asked
    assert "NetworksClient.get" not in account.asked


def test_given_networks_are_read_with_profile_subnets_nat_and_rules() -> None:
    plan = compiled(Account(), fleet(network={"vpc": "net", "roce_vpcs": ["rdma"]})).plan
    assert plan.warnings == ()
    assert [(vpc.name, vpc.origin, vpc.mtu) for vpc in plan.networks.vpcs][::2] == [
        ("net", "given", 8896),
        ("rdma", "given", 8896),
    ]
    assert [each.subnet for each in plan.interfaces if each.kind == "MRDMA"] == [
        f"rdma-{i}" for i in range(8)
    ]


def test_what_is_not_there_is_told_by_name() -> None:
    from orch.spec.findings import PlanErrors

    account = Account(NetworksClient__get=missing, ImagesClient__get_from_family=missing)
    with pytest.raises(PlanErrors) as caught:
        compiled(account, fleet(network={"vpc": "net"}))
    assert {each.code for each in caught.value.findings} == {"ORCH226", "ORCH213"}


def test_a_reservation_is_read_whole() -> None:
    held = compute.Reservation(
        status="READY",
        specific_reservation_required=True,
        specific_reservation=compute.AllocationSpecificSKUReservation(
            count=4,
            in_use_count=1,
            instance_properties=compute.AllocationSpecificSKUAllocationReservedInstanceProperties(
                machine_type="a3-ultragpu-8g"
            ),
        ),
    )
    found = gather_facts.reservation(
        Account(ReservationsClient__get=lambda **_: held),
        "projects/hub/reservations/r",
        (),
        ["us-central1-b"],
    )
    assert found is not None
    assert (found.project, found.name, found.free, found.instance_type) == ("hub", "r", 3, "a3-ultragpu-8g")


def test_quotas_are_compared_with_what_is_used() -> None:
    from orch.spec.findings import PlanErrors

    with pytest.raises(PlanErrors) as caught:
        compiled(Account(), fleet(instance_types=["a2-highgpu-8g"]))
    (error,) = [each for each in caught.value.findings if each.code == "ORCH313"]
    assert error.summary == "2 x a2-highgpu-8g need 16 GPUs, the project's quota is 16, 8 in use"


def instance(name: str, created: str, host: str) -> Any:
    return compute.Instance(
        id=8,
        name=name,
        creation_timestamp=created,
        network_interfaces=[compute.NetworkInterface(network_i_p="10.0.0.9")],
        resource_status=compute.ResourceStatus(physical_host=host),
    )


def test_members_come_in_the_order_of_their_creation() -> None:
    rows = [instance("b", "2026-01-02", "/b1/s1/h2"), instance("a", "2026-01-03", "/b1/s1/h1")]
    found = gather_facts.members(Account(InstancesClient__list=lambda **_: rows), "us-central1-a", "g")
    start = [moment(each) for each in ("2026-01-02", "2026-01-03")]
    assert found == (
        Member("b", "10.0.0.9", None, "2026-01-02", ("b1", "s1", "h2"), id="8", started=start[0]),
        Member("a", "10.0.0.9", None, "2026-01-03", ("b1", "s1", "h1"), id="8", started=start[1]),
    )


GUEST, SPOT = "compute.instances.guestTerminate", "compute.instances.preempted"


@pytest.mark.parametrize(
    ("status", "operations", "ended"),
    [
        ("RUNNING", [], False),
        ("TERMINATED", [(2, GUEST)], True),
        ("STOPPING", [(2, GUEST)], True),
        ("TERMINATED", [(2, "stop")], False),
        ("TERMINATED", [], False),  # forgotten
        ("TERMINATED", [(3, "stop"), (2, GUEST)], False),
        # It was started again since.
        ("TERMINATED", [(0, GUEST)], False),
        (None, [(2, SPOT), (3, "delete")], True),
        (None, [(2, "delete")], False),
        (None, [], True),
        # Somebody changed its label.
        ("RUNNING without its label", [(2, GUEST)], False),
    ],
)
def test_a_node_ended_itself_by_what_operations_tell(
    status: str | None, operations: list[tuple[int, str]], ended: bool
) -> None:
    def there(**_: Any) -> Any:
        if status is None:
            raise exceptions.NotFound("gone")
        return row

    def listed(request: dict[str, str]) -> Any:
        assert f'(operationType = "{GUEST}") OR ' in request["filter"]
        rows = [(f"2026-01-01T0{at}:00:00.123-08:00", kind) for at, kind in operations]
        other = compute.Operation(operation_type=GUEST, target_id=9, insert_time="2026-01-02T00:00:00Z")
        return [
            other,
            *(compute.Operation(operation_type=kind, target_id=8, insert_time=at) for at, kind in rows),
        ]

    row = instance("a", "2025-12-31", "")
    row.last_start_timestamp = "2026-01-01T01:00:00.000-08:00"
    row.status = (status or "").partition(" ")[0]
    labelled = status is not None and " " not in status
    account = Account(
        InstancesClient__list=lambda **_: [row] if labelled else [],
        InstancesClient__get=there,
        ZoneOperationsClient__list=listed,
    )
    told = gather_facts.ended_by_themselves(account, "us-central1-a", "g", {"8": "a"}, over=False)
    assert told == (frozenset({"8"}) if ended else frozenset())


def test_a_refusal_is_told_with_the_permission() -> None:
    def forbidden(**_: Any) -> Any:
        raise exceptions.Forbidden(
            "Required 'compute.zones.list' permission", errors=[{"reason": "forbidden"}]
        )

    with pytest.raises(gather_facts.CloudRefused) as caught:
        compiled(Account(ZonesClient__list=forbidden), fleet())
    assert caught.value.code == "ORCH304"
    assert caught.value.error is not None
    assert caught.value.error.verdict == "stop"
    assert "compute.zones.list" in (caught.value.detail or "")


def test_a_preview_tells_that_host_keys_may_not_be_read() -> None:
    def forbidden(**_: Any) -> Any:
        raise exceptions.Forbidden(
            "Required 'compute.instances.getGuestAttributes' permission", errors=[{"reason": "forbidden"}]
        )

    with pytest.raises(PlanErrors) as caught:
        compiled(Account(InstancesClient__get_guest_attributes=forbidden), fleet())
    (finding,) = caught.value.findings
    assert finding.code == "ORCH304"
    assert finding.hint == "these credentials need `compute.instances.getGuestAttributes`"


@pytest.mark.parametrize(
    ("items", "key"),
    [
        ([("orch", "host-key", f"{KEY}\n")], KEY),
        ([("hostkeys", "ssh-ed25519", KEY)], None),
        ([("orch", "host-key", "ssh-rsa AAAA")], None),
        ([("orch", "host-key", f"{KEY}\n* {KEY}")], None),
        ([], None),
    ],
    ids=["as it is shown", "of Google's agent", "of another kind", "more than one line", "nothing"],
)
def test_a_host_key_is_what_the_node_itself_shows(items: list[tuple[str, str, str]], key: str | None) -> None:
    def shown(request: dict[str, str]) -> Any:
        assert request["query_path"] == "orch/host-key"
        entries = [compute.GuestAttributesEntry(namespace=n, key=k, value=v) for n, k, v in items]
        return compute.GuestAttributes(query_value=compute.GuestAttributesValue(items=entries))

    account = Account(InstancesClient__get_guest_attributes=shown)
    found = gather_facts.host_keys(account, "us-central1-a", ["one", "two"])
    assert found == ({"one": key, "two": key} if key else {})


def test_an_instance_that_has_not_booted_shows_no_host_key() -> None:
    assert gather_facts.host_keys(Account(), "us-central1-a", ["one"]) == {}


def test_what_a_stack_has_already_is_counted_before_a_quota_is() -> None:
    rows = [instance(name, "2026-01-02", "/b1/s1/h1") for name in "ab"]
    account = Account(InstancesClient__list=lambda **_: rows)
    settings, wanted = GcpSettings(), fleet(instance_types=["a2-highgpu-8g"])
    (chosen, *_) = candidates(wanted, settings, CATALOG)
    begun = PriorState({"scope": "abc123"})
    request = request_of(wanted, settings, previous=begun, session=account)
    made = GcpBackend().deployment(request, chosen)
    assert "InstancesClient.list" in account.asked
    assert made.plan.nodes


@pytest.mark.parametrize(("there", "looked"), [((0,), False), ((), True)], ids=["all there", "missing"])
def test_nodes_are_looked_for_where_some_have_to_be_made(there: tuple[int, ...], looked: bool) -> None:
    """Of a thousand nodes it is a long list."""
    wanted, settings = fleet(nodes="1", instance_types=["a2-highgpu-8g"]), GcpSettings()
    (first, *_) = candidates(wanted, settings, CATALOG)
    made = GcpBackend().deployment(request_of(wanted, settings, session=Account()), first)
    prior = PriorState(
        dict(made.plan.pins), existing_nodes=frozenset(f"{wanted.name}-{index}" for index in there)
    )
    (kept,) = candidates(wanted, settings, CATALOG, previous=prior)
    account = Account(InstancesClient__list=lambda **_: [])
    GcpBackend().deployment(request_of(wanted, settings, previous=prior, session=account), kept)
    assert ("InstancesClient.list" in account.asked) is looked


@pytest.mark.parametrize(
    ("killed", "limit", "fits"),
    [(0, 18, True), (0, 17, False), (4, 18, True), (4, 17, False)],
    ids=["all fit", "each group does, not both", "some are there already", "the rest is too much"],
)
def test_a_quota_is_judged_for_what_is_new_in_all_groups(killed: int, limit: int, *, fits: bool) -> None:
    """Two nodes run beside eight GPUs of others; an `up` that was cut short was about to have four more, of
    which `killed` came to be, in one zone, and four more are missing in another."""
    there = {"us-central1-a": 2, "us-central1-c": killed}

    def running(request: dict[str, str]) -> Any:
        names = [f"{request['zone']}-{each}" for each in range(there.get(request["zone"], 0))]
        return [instance(name, "2026-01-02", "") for name in names]

    quota = compute.Quota(metric="NVIDIA_A100_GPUS", limit=limit, usage=8 + sum(there.values()))
    account = Account(
        InstancesClient__list=running, RegionsClient__get=lambda **_: compute.Region(quotas=[quota])
    )
    zones = ["us-central1-a", "us-central1-c", "us-central1-f"]
    wanted = fleet(instance_types=["a2-highgpu-1g"], zones=zones, nodes="10", placement="any")
    own = {"instance_type": "a2-highgpu-1g", "spot": "false", "layout": "x"}
    pins = {"backend": "gcp", "project": "acme-ml", "region": "us-central1", "scope": "abc123", **own}
    pins |= {"zone": "us-central1-a", "indices": "0-1"}
    more = json.dumps([{"number": "1", "zone": "us-central1-c", "indices": "2-5", **own}])
    previous = PriorState(pins, unfinished={**pins, "indices": "0-5", "groups": more})
    settings = GcpSettings()
    places = candidates(wanted, settings, CATALOG)
    last = next(each for each in places if each.zone == "us-central1-f")
    request = request_of(wanted, settings, previous=previous, session=account)
    if fits:
        made = GcpBackend().deployment(request, replace(last, additional=True))
        assert [len(group.nodes) for group in made.plan.node_groups] == [2, 4, 4]
        return
    with pytest.raises(PlanErrors) as caught:
        GcpBackend().deployment(request, replace(last, additional=True))
    (error,) = [each for each in caught.value.findings if each.severity.value == "error"]
    beside = "" if killed else " beside 4 of the fleet's other nodes"
    used = f"the project's quota is 17, {8 + sum(there.values())} in use"
    assert (error.code, error.summary) == ("ORCH313", f"4 x a2-highgpu-1g need 4 GPUs{beside}, {used}")


def test_a_host_key_that_cannot_be_read_for_now_is_asked_for_again() -> None:
    """A thousand nodes are asked for at once: Google refuses some of that, and answers a little later."""
    busy = {"two", "three"}

    def shown(request: dict[str, str]) -> Any:
        if request["instance"] == "two" and "two" in busy:
            raise exceptions.TooManyRequests("slow down", errors=[{"reason": "rateLimitExceeded"}])
        if request["instance"] == "three" and "three" in busy:
            raise exceptions.ServiceUnavailable("not now", errors=[{"reason": "backendError"}])
        entry = compute.GuestAttributesEntry(namespace="orch", key="host-key", value=KEY)
        return compute.GuestAttributes(query_value=compute.GuestAttributesValue(items=[entry]))

    account = Account(InstancesClient__get_guest_attributes=shown)
    assert gather_facts.host_keys(account, "us-central1-a", ["one", "two", "three"]) == {"one": KEY}
    busy.clear()
    found = gather_facts.host_keys(account, "us-central1-a", ["two", "three"])
    assert found == {"two": KEY, "three": KEY}


def test_a_host_key_that_may_not_be_read_is_told_at_once() -> None:
    def forbidden(**_: Any) -> Any:
        raise exceptions.Forbidden("no", errors=[{"reason": "forbidden"}])

    account = Account(InstancesClient__get_guest_attributes=forbidden)
    with pytest.raises(gather_facts.CloudRefused) as caught:
        gather_facts.host_keys(account, "us-central1-a", ["one"])
    assert caught.value.code == "ORCH304"


class Answer:
    """What Google's userinfo endpoint answers."""

    def __init__(self, status: int, body: dict[str, str]) -> None:
        self.ok, self._body = status == 200, body

    def json(self) -> dict[str, str]:
        return self._body


class Web:
    """A session of requests that is logged in."""

    def __init__(self, answer: Answer | Exception) -> None:
        self._answer = answer

    def get(self, url: str, timeout: float) -> Answer:
        assert url.startswith("https://openidconnect.googleapis.com/")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class OfMachine:
    """Credentials of a machine, which know their account once they have a token."""

    service_account_email = "default"

    def refresh(self, request: object) -> None:
        self.service_account_email = "node@acme.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("credentials", "answer", "whom"),
    [
        (SimpleNamespace(service_account_email="ci@acme.iam"), OSError("asked"), "ci@acme.iam"),
        (OfMachine(), OSError("asked"), "node@acme.iam.gserviceaccount.com"),
        (SimpleNamespace(account="me@acme.example"), OSError("asked"), "me@acme.example"),
        (SimpleNamespace(account=""), Answer(200, {"email": "me@acme.example"}), "me@acme.example"),
        (SimpleNamespace(), Answer(401, {}), "a login of which Google tells no e-mail"),
        (SimpleNamespace(), Answer(200, {}), "a login of which Google tells no e-mail"),
    ],
    ids=["service account", "machine", "user of gcloud", "user", "refused", "no e-mail"],
)
def test_whose_credentials_make_nodes_is_told_with_project_and_e_mail(
    credentials: object, answer: Answer | Exception, whom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather_facts.Credentials, "http", lambda self: Web(answer))
    projects = SimpleNamespace(get=lambda project: SimpleNamespace(id=4711))
    monkeypatch.setattr(gather_facts.Credentials, "client", lambda self, name: projects)
    session = gather_facts.Credentials(credentials, "acme-ml")
    assert GcpBackend().account([], lambda name: session).words == f"GCP project acme-ml as {whom}"


def test_a_google_that_is_not_reached_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_facts.Credentials, "http", lambda self: Web(OSError("no route")))
    session = gather_facts.Credentials(SimpleNamespace(), "acme-ml")
    with pytest.raises(gather_facts.CloudRefused, match="GCP cannot be reached to ask whose credentials"):
        GcpBackend().account([], lambda name: session)
