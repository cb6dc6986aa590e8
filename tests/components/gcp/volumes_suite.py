"""Persistent disks on the simulated project: what is planned, refused, attached and detached."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden, ServiceUnavailable

from orch.components.cloud import volumes as cloud_volumes
from orch.components.cloud_errors import CloudRefused
from orch.components.gcp.account.client import ProjectClient
from orch.components.gcp.volumes import GcpVolumes
from orch.components.registry.volumes import plan_volume
from orch.components.volumes import Account, VolumeError, VolumePlan, VolumeRequest
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.hooks import session
from orch.runner.errors import DetachPending
from orch.spec.findings import PlanError
from orch.spec.models import Volume
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState

ZONE = "us-central1-b"
PROJECT = "projects/acme-ml"


@pytest.fixture
def cloud(tmp_path: Path) -> GcpCloud:
    return GcpCloud.create(tmp_path / "gcp.db")


@pytest.fixture
def account(cloud: GcpCloud) -> Account:
    made = session(cloud, "acme-ml")
    return Account((), lambda backend: made)


Plan = Callable[..., VolumePlan]


@pytest.fixture
def plan(account: Account) -> Plan:
    def planned(previous: VolumeState | None = None, near: tuple[str, ...] = (), **more: Any) -> VolumePlan:
        given = {"name": "data", "backend": "gcp", "region": "us-central1", "size": "100GB"}
        volume = Volume.model_validate({key: value for key, value in (given | more).items() if value})
        return plan_volume(VolumeRequest(volume, account, previous, "ab12cd", near=near))

    return planned


def call(cloud: GcpCloud, method: str, path: str, body: Any = None, **params: Any) -> Any:
    """Ask, relative to the project; the error's reason where it is refused."""
    status, answer = cloud.request(method, f"{PROJECT}/{path}", params, body)
    if status != 200:
        return answer["error"]["errors"][0]["reason"]
    for error in (answer.get("error") or {}).get("errors") or ():
        return error["code"]
    return answer


def instance(cloud: GcpCloud, name: str = "one") -> NodeState:
    call(cloud, "POST", "global/networks", {"name": f"n-{name}", "autoCreateSubnetworks": False})
    network = f"{PROJECT}/global/networks/n-{name}"
    subnet = {"name": f"s-{name}", "network": network, "ipCidrRange": "10.0.0.0/24"}
    call(cloud, "POST", "regions/us-central1/subnetworks", subnet)
    image = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
    body = {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/e2-medium",
        "networkInterfaces": [{"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/s-{name}"}],
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
    }
    call(cloud, "POST", f"zones/{ZONE}/instances", body)
    number = call(cloud, "GET", f"zones/{ZONE}/instances/{name}")["id"]
    record = {"index": 0, "name": f"node-{name}", "address": "10.0.0.9", "user": "root"}
    return NodeState.model_validate(record | {"host_key": "ssh-ed25519 AAAA", "machine": number})


def disk(cloud: GcpCloud, name: str = "data-1", **more: Any) -> VolumeState:
    body = {"name": name, "sizeGb": "100", "type": f"zones/{ZONE}/diskTypes/pd-ssd"} | more
    call(cloud, "POST", f"zones/{ZONE}/disks", body)
    return VolumeState(name="data", backend="gcp", region="us-central1", zone=ZONE, volume_id=name)


def users(cloud: GcpCloud, volume: VolumeState) -> list[str]:
    doc = call(cloud, "GET", f"zones/{ZONE}/disks/{volume.volume_id}")
    return [str(each).rpartition("/")[2] for each in doc.get("users", ())]


def test_a_disk_goes_where_nodes_are_else_to_the_first_zone(plan: Plan) -> None:
    first = plan().state
    assert (first.zone, first.disk_type, first.monthly) == ("us-central1-a", "pd-balanced", 10.0)
    assert (first.volume_id, first.project) == ("orch-data-ab12cd", "acme-ml")
    assert plan(near=("us-central1-f",)).state.zone == "us-central1-f"
    assert plan(first, near=("us-central1-f",)).state.zone == "us-central1-a"


@pytest.mark.parametrize(
    ("wrong", "code", "path"),
    [
        ({"availability_zone": "us-central1-x"}, "ORCH225", "availability_zone"),
        ({"region": "us-central9"}, "ORCH225", "region"),
        ({"disk_type": "gp3"}, "ORCH111", "disk_type"),
        ({"disk_type": "pd-ssd", "iops": "5000"}, "ORCH270", "iops"),
        ({"disk_type": "hyperdisk-extreme", "throughput": "500"}, "ORCH270", "throughput"),
        ({"volume_id": "not-there", "size": None}, "ORCH268", "volume_id"),
    ],
)
def test_what_gcp_does_not_have_is_refused_at_its_property(
    plan: Plan, wrong: dict[str, Any], code: str, path: str
) -> None:
    with pytest.raises(PlanError) as caught:
        plan(**wrong)
    assert (caught.value.code, caught.value.path) == (code, path)
    assert caught.value.hint


def test_another_type_replaces_and_is_refused_while_protected(plan: Plan) -> None:
    before = plan().state
    with pytest.raises(PlanError, match="another `disk_type` replaces it") as caught:
        plan(before, disk_type="pd-ssd")
    assert caught.value.code == "ORCH348"
    assert plan(before, size="200GB").state.size_mib == 200 * 1024


def test_an_existing_disk_is_taken_as_it_is(cloud: GcpCloud, plan: Plan) -> None:
    disk(cloud, "mine")
    state = plan(volume_id="mine", availability_zone=ZONE, size=None).state
    assert (state.external, state.volume_id, state.size_mib, state.disk_type) == (
        True,
        "mine",
        102400,
        "pd-ssd",
    )


def test_a_disk_is_attached_once_and_detached_again(cloud: GcpCloud, account: Account) -> None:
    node, volume, volumes = instance(cloud), disk(cloud), GcpVolumes()
    for _ in range(2):
        paths = volumes.attach(account, volume, node, read_only=False).paths
        assert paths == ("/dev/disk/by-id/google-data-1",)
    assert users(cloud, volume) == ["one"]
    for _ in range(2):
        volumes.detach(account, volume, node)
    assert users(cloud, volume) == []


def test_a_disk_that_another_instance_has_is_a_conflict_and_stays_there(
    cloud: GcpCloud, account: Account
) -> None:
    one, other, volume = instance(cloud), instance(cloud, "two"), disk(cloud)
    GcpVolumes().attach(account, volume, one, read_only=False)
    with pytest.raises(VolumeError, match="is attached to one, not to node-two") as caught:
        GcpVolumes().attach(account, volume, other, read_only=False)
    assert caught.value.code == "ORCH267"
    GcpVolumes().detach(account, volume, other)
    assert users(cloud, volume) == ["one"]


class Second(GcpVolumes):
    """One of two that find a disk free and ask for it: it is the second, after the one on `quicker`."""

    def __init__(self, quicker: str) -> None:
        self.quicker = quicker

    def attach_disk(
        self, client: ProjectClient, volume: VolumeState, instance: str, *, read_only: bool
    ) -> None:
        super().attach_disk(client, volume, self.quicker, read_only=read_only)
        super().attach_disk(client, volume, instance, read_only=read_only)


def test_two_runs_that_begin_at_once_on_a_node_both_have_the_disk(cloud: GcpCloud, account: Account) -> None:
    node, volume = instance(cloud), disk(cloud)
    assert Second("one").attach(account, volume, node, read_only=False).paths
    assert [call.action for call in cloud.calls].count("compute.instances.attachDisk") == 2
    assert users(cloud, volume) == ["one"]


def test_of_two_nodes_that_want_a_disk_at_once_the_second_is_told_who_has_it(
    cloud: GcpCloud, account: Account
) -> None:
    instance(cloud)
    other, volume = instance(cloud, "two"), disk(cloud)
    with pytest.raises(VolumeError, match="is attached to one, not to node-two") as caught:
        Second("one").attach(account, volume, other, read_only=False)
    assert caught.value.code == "ORCH267"


def test_an_operation_that_finds_the_disk_taken_is_no_failure_where_this_node_has_it(
    cloud: GcpCloud, account: Account
) -> None:
    node, volume = instance(cloud), disk(cloud)
    late = {"code": "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "action": "compute.instances.attachDisk"}
    cloud.turn(failures=[{**late, "nth": 2}])
    assert Second("one").attach(account, volume, node, read_only=False).paths


def test_a_disk_outlives_the_instance_that_had_it(cloud: GcpCloud, account: Account) -> None:
    node, volume = instance(cloud), disk(cloud)
    GcpVolumes().attach(account, volume, node, read_only=False)
    call(cloud, "DELETE", f"zones/{ZONE}/instances/one")
    assert users(cloud, volume) == []
    GcpVolumes().detach(account, volume, node)


def test_a_disk_that_is_gone_and_a_node_without_an_id_are_told(cloud: GcpCloud, account: Account) -> None:
    node, volume = instance(cloud), disk(cloud)
    unknown = node.model_copy(update={"machine": None})
    with pytest.raises(VolumeError, match="the instance of node node-one is not known"):
        GcpVolumes().attach(account, volume, unknown, read_only=False)
    call(cloud, "DELETE", f"zones/{ZONE}/disks/data-1")
    with pytest.raises(VolumeError, match="volume data is gone") as caught:
        GcpVolumes().attach(account, volume, node, read_only=False)
    assert caught.value.code == "ORCH268"
    GcpVolumes().detach(account, volume, node)


def test_a_refusal_of_gcp_is_told_with_its_code(cloud: GcpCloud, account: Account) -> None:
    node, volume = instance(cloud), disk(cloud)
    cloud.turn(denied=["compute.instances.attachDisk"])
    with pytest.raises(CloudRefused, match="could not attach data-1 to one") as caught:
        GcpVolumes().attach(account, volume, node, read_only=False)
    assert caught.value.code == "ORCH304"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FutureTimeout(), " for 300 s"),
        (ConnectionResetError("reset"), ", and GCP cannot be reached to ask how far that is"),
        (ServiceUnavailable("later"), ", and GCP asks to come back later"),
        (Forbidden("zoneOperations.get"), ", and GCP does not let these credentials do this"),
    ],
)
def test_a_detaching_whose_end_is_not_seen_is_told_as_one_under_way(
    cloud: GcpCloud, account: Account, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    class Stuck:
        def exception(self, timeout: float) -> None:
            raise error

    node, volume = instance(cloud), disk(cloud)
    GcpVolumes().attach(account, volume, node, read_only=False)
    instances = account.session("gcp").client("InstancesClient")
    monkeypatch.setattr(type(instances), "detach_disk", lambda self, **given: Stuck())
    with pytest.raises(DetachPending, match=f"volume data is being detached from one{told}"):
        GcpVolumes().detach(account, volume, node)
    assert GcpVolumes().users(account, volume) == ("one",)


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("forbidden", CloudRefused),
        ("INVALID_USAGE", CloudRefused),
        ("backendError", DetachPending),
        ("resourceNotReady", DetachPending),
        ("INTERNAL_ERROR", DetachPending),
    ],
)
def test_a_detaching_is_over_when_gcp_refuses_it_and_may_happen_after_other_errors(
    cloud: GcpCloud, account: Account, code: str, raised: type[Exception]
) -> None:
    node, volume = instance(cloud), disk(cloud)
    GcpVolumes().attach(account, volume, node, read_only=False)
    cloud.turn(failures=[{"code": code, "action": "compute.instances.detachDisk"}])
    with pytest.raises(raised, match="could not detach data-1 from one"):
        GcpVolumes().detach(account, volume, node)
    assert users(cloud, volume) == ["one"]


def test_a_disk_is_attached_once_a_detaching_is_over_that_nobody_waits_for(
    cloud: GcpCloud, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, volume = instance(cloud), disk(cloud)
    GcpVolumes().attach(account, volume, node, read_only=False)
    name, slept = f"{PROJECT}/zones/{ZONE}/operations/operation-1", list[float]()
    operation = {"name": "operation-1", "operationType": "detachDisk", "status": "RUNNING"}
    operation["targetLink"] = f"https://www.googleapis.com/compute/v1/{PROJECT}/zones/{ZONE}/instances/one"
    cloud.store.put(name, "operation", ZONE, operation)

    def detached(seconds: float) -> None:
        slept.append(seconds)
        cloud.store.put(name, "operation", ZONE, operation | {"status": "DONE"})
        call(cloud, "POST", f"zones/{ZONE}/instances/one/detachDisk", deviceName="data-1")

    monkeypatch.setattr(cloud_volumes.time, "sleep", detached)
    GcpVolumes().attach(account, volume, node, read_only=False)
    assert (slept, users(cloud, volume)) == ([cloud_volumes.PAUSE_S], ["one"])


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("disks", {"name": "x", "sizeGb": "5"}, "invalid"),
        ("disks", {"name": "x", "type": "zones/z/diskTypes/gp3"}, "invalid"),
        ("disks", {"name": "x", "type": "pd-ssd", "provisionedIops": "9000"}, "invalid"),
        ("disks", {"name": "data-1"}, "alreadyExists"),
        ("disks/data-1/resize", {"sizeGb": "100"}, "invalid"),
        ("instances/one/attachDisk", {"source": f"{PROJECT}/zones/us-central1-a/disks/far"}, "notFound"),
    ],
)
def test_the_project_refuses_as_the_api_documents_it(
    cloud: GcpCloud, path: str, body: dict[str, Any], reason: str
) -> None:
    instance(cloud)
    disk(cloud)
    assert call(cloud, "POST", f"zones/{ZONE}/{path}", body) == reason
