"""Google's own clients on a simulated account."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1 as compute
from kit.clouds.strangers import HTML, JSON, PORTAL, answering, serving

from orch.components.cloud_errors import CloudRefused
from orch.components.gcp.account.guarded import Guarded
from orch.components.gcp.backend import GcpBackend
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.hooks import Session, session

ZONE, REGION = "us-central1-b", "us-central1"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session, in a process that cannot reach a network."""

    def none(*_: Any, **__: Any) -> Any:
        raise AssertionError("something is sent")

    monkeypatch.setattr(socket, "create_connection", none)
    monkeypatch.setattr(socket.socket, "connect", none)
    return session(GcpCloud.create(tmp_path / "gcp.db"), "acme-ml")


def add_subnet(made: Session) -> str:
    network = compute.Network(name="net", auto_create_subnetworks=False, mtu=8896)
    made.client("NetworksClient").insert(project=made.project, network_resource=network).result()
    subnet = compute.Subnetwork(
        name="sub", network=f"projects/{made.project}/global/networks/net", ip_cidr_range="10.0.0.0/24"
    )
    client = made.client("SubnetworksClient")
    client.insert(project=made.project, region=REGION, subnetwork_resource=subnet).result()
    return f"projects/{made.project}/regions/{REGION}/subnetworks/sub"


def instance(name: str, subnet: str, **labels: str) -> Any:
    image = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
    params = compute.AttachedDiskInitializeParams(source_image=image)
    return compute.Instance(
        name=name,
        machine_type=f"zones/{ZONE}/machineTypes/e2-medium",
        network_interfaces=[compute.NetworkInterface(subnetwork=subnet)],
        disks=[compute.AttachedDisk(boot=True, auto_delete=True, initialize_params=params)],
        labels=labels,
    )


def test_what_a_plan_asks(made: Session) -> None:
    zones = [
        row.name
        for row in made.client("ZonesClient").list(project=made.project)
        if row.region.endswith(REGION)
    ]
    assert zones == ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"]
    kind = made.client("MachineTypesClient").get(
        project=made.project, zone=ZONE, machine_type="a4-highgpu-8g"
    )
    assert (kind.guest_cpus, kind.accelerators[0].guest_accelerator_count) == (224, 8)
    profiles = made.client("NetworkProfilesClient")
    assert profiles.get(project=made.project, network_profile=f"{ZONE}-vpc-roce").name == f"{ZONE}-vpc-roce"
    image = made.client("ImagesClient").get_from_family(project="cos-cloud", family="cos-105-lts")
    assert (image.name.startswith("cos-105"), image.disk_size_gb) == (True, 10)
    region = made.client("RegionsClient").get(project=made.project, region=REGION)
    assert "NVIDIA_A100_GPUS" in {row.metric for row in region.quotas}
    project = made.client("ProjectsClient").get(project=made.project)
    assert [(row.limit, row.usage) for row in project.quotas if row.metric == "NETWORKS"] == [(15.0, 0.0)]


def test_what_is_not_there_is_their_not_found(made: Session) -> None:
    with pytest.raises(exceptions.NotFound) as caught:
        made.client("NetworksClient").get(project=made.project, network="none")
    assert caught.value.errors[0]["reason"] == "notFound"


def test_what_is_denied_is_their_forbidden(made: Session) -> None:
    made.cloud.turn(denied=["compute.zones.list"])
    with pytest.raises(exceptions.Forbidden, match=r"Required 'compute\.zones\.list' permission"):
        list(made.client("ZonesClient").list(project=made.project))


def test_given_networks_are_read(made: Session) -> None:
    add_subnet(made)
    network = made.client("NetworksClient").get(project=made.project, network="net")
    assert (network.mtu, len(network.subnetworks)) == (8896, 1)
    (subnet,) = made.client("SubnetworksClient").list(project=made.project, region=REGION)
    assert (subnet.ip_cidr_range, subnet.stack_type) == ("10.0.0.0/24", "IPV4_ONLY")
    rule = compute.Firewall(
        name="in",
        network=f"projects/{made.project}/global/networks/net",
        allowed=[compute.Allowed(I_p_protocol="tcp")],
    )
    made.client("FirewallsClient").insert(project=made.project, firewall_resource=rule).result()
    (found,) = made.client("FirewallsClient").list(project=made.project)
    assert (found.direction, found.allowed[0].I_p_protocol) == ("INGRESS", "tcp")
    assert not list(made.client("RoutersClient").list(project=made.project, region=REGION))


def test_members_are_listed_by_label_over_several_pages(made: Session) -> None:
    subnet = add_subnet(made)
    client = made.client("InstancesClient")
    for number in range(3):
        wanted = instance(f"i{number}", subnet, **{"orch-group": "g"})
        client.insert(project=made.project, zone=ZONE, instance_resource=wanted).result()
    asked = {"project": made.project, "zone": ZONE, "filter": "labels.orch-group=g", "max_results": 2}
    rows = list(client.list(request=asked))
    assert [row.name for row in rows] == ["i0", "i1", "i2"]
    assert rows[0].network_interfaces[0].network_i_p == "10.0.0.2"
    assert rows[0].creation_timestamp <= rows[2].creation_timestamp


def test_a_stock_out_is_the_operations_error(made: Session) -> None:
    subnet = add_subnet(made)
    made.cloud.turn(capacity={"e2-medium": 0})
    begun = made.client("InstancesClient").insert(
        project=made.project, zone=ZONE, instance_resource=instance("one", subnet)
    )
    with pytest.raises(exceptions.ServiceUnavailable, match="does not have enough resources"):
        begun.result()
    assert begun.error_code == 503


def test_a_reservation_is_read(made: Session) -> None:
    made.cloud.add_reservation("r", ZONE, "a3-ultragpu-8g", 4, project=made.project)
    row = made.client("ReservationsClient").get(project=made.project, zone=ZONE, reservation="r")
    held = row.specific_reservation
    assert (held.count, held.in_use_count, held.instance_properties.machine_type) == (4, 0, "a3-ultragpu-8g")
    assert (row.status, row.specific_reservation_required) == ("READY", True)


def test_the_log_names_the_clients(made: Session) -> None:
    list(made.client("ZonesClient").list(project=made.project))
    assert made.cloud.calls[-1].caller == "google-cloud-compute"


def test_the_program_asks_through_it(made: Session) -> None:
    from orch.components.gcp.account import gather_facts

    subnet = add_subnet(made)
    labels = {"orch-stack": "acme", "orch-urn": "gcp__one"}
    wanted = instance("one", subnet, **labels)
    made.client("InstancesClient").insert(project=made.project, zone=ZONE, instance_resource=wanted).result()
    assert gather_facts.tagged(made, ZONE, "acme") == (("one", "gcp__one"),)


def test_the_caller_is_the_account_that_operations_name(made: Session) -> None:
    add_subnet(made)
    (operation, *_) = made.client("GlobalOperationsClient").list(project=made.project)
    assert GcpBackend().account([], lambda name: made).words == f"GCP project acme-ml as {operation.user}"


def test_a_project_is_known_by_its_number_in_each_account(made: Session, tmp_path: Path) -> None:
    other = GcpCloud.create(tmp_path / "gcp@dev.db", other="dev")
    sessions = [made, session(other, "acme-ml"), session(made.cloud, "acme-ops"), made]
    first, dev, ops, again = (GcpBackend().account([], lambda name, s=each: s).id for each in sessions)
    assert first == str(made.client("ProjectsClient").get(project="acme-ml").id)
    assert (len({first, dev, ops}), again) == (3, first)
    made.cloud.turn(denied=("compute.projects.get",))
    with pytest.raises(CloudRefused, match="ask which project acme-ml is"):
        GcpBackend().account([], lambda name: made)


def zones_at(url: str) -> Any:
    credentials = AnonymousCredentials()
    options = {"api_endpoint": url}
    return Guarded(compute.ZonesClient(credentials=credentials, transport="rest", client_options=options))


def test_a_zone_is_not_there_if_google_says_so() -> None:
    error = {"code": 404, "message": "not found", "errors": [{"reason": "notFound"}]}
    with answering(404, json.dumps({"error": error})) as url, pytest.raises(exceptions.NotFound):
        zones_at(url).get(project="acme-ml", zone="z")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, PORTAL, HTML),
        (404, '{"message": "no Route matched with those values"}', JSON),
        (404, '{"error": "not found"}', JSON),
        (200, PORTAL, HTML),
    ],
)
def test_a_stranger_in_the_place_of_google_is_told_with_the_address(
    status: int, body: str, kind: str
) -> None:
    with answering(status, body, kind) as url:
        for ask in (
            lambda: zones_at(url).get(project="acme-ml", zone="z"),
            lambda: list(zones_at(url).list(project="acme-ml")),
        ):
            with pytest.raises(CloudRefused) as refused:
                ask()
            assert (refused.value.code, refused.value.where) == ("ORCH358", url)


def test_a_list_of_google_that_goes_in_circles_ends() -> None:
    calls: list[str] = []

    def answer(path: str, headers: object, body: str) -> tuple[int, str, str]:
        calls.append(path)
        return 200, JSON, json.dumps({"items": [], "nextPageToken": "ab"[len(calls) % 2]})

    with serving(answer) as url, pytest.raises(CloudRefused, match="does not end") as refused:
        list(zones_at(url).list(project="acme-ml"))
    assert (refused.value.code, len(calls)) == ("ORCH358", 3)
