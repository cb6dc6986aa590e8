"""Instances and their templates: what they may ask for, what of them may change, and their end."""

from __future__ import annotations

from typing import Any

import pytest

PROJECT = "projects/orch-rehearsal"
ZONE = "zones/us-central1-b"
LINK = "https://www.googleapis.com/compute/v1/"


def got(project: Any, name: str = "one") -> dict[str, Any]:
    return project.call("GET", f"{ZONE}/instances/{name}")


def test_an_instance_is_told_as_the_api_tells_it(project: Any) -> None:
    nic = {
        "subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main",
        "accessConfigs": [{"name": "External NAT"}],
    }
    project.launch("one", nics=[nic], labels={"orch-fleet": "f"}, tags={"items": ["ssh"]})
    doc = got(project)
    assert doc["selfLink"] == f"{LINK}{PROJECT}/{ZONE}/instances/one"
    assert doc["zone"] == f"{LINK}{PROJECT}/{ZONE}"
    assert doc["machineType"].endswith("/zones/us-central1-b/machineTypes/e2-medium")
    assert doc["id"].isdigit()
    assert doc["creationTimestamp"].endswith("-08:00")
    assert (doc["status"], doc["labels"], doc["tags"]["items"]) == ("RUNNING", {"orch-fleet": "f"}, ["ssh"])
    assert doc["networkInterfaces"][0]["networkIP"] == "10.200.0.2"
    assert doc["networkInterfaces"][0]["accessConfigs"][0]["natIP"].startswith("198.18.")
    assert not [key for key in doc if key.startswith("_")]
    disk = project.call("GET", f"{ZONE}/disks/one")
    assert (disk["sizeGb"], disk["users"]) == ("10", [doc["selfLink"]])


def test_a_name_is_taken_once_in_a_zone(project: Any, refused: Any) -> None:
    project.launch("one")
    assert (refused(project.launch, "one").status, refused(project.launch, "one").code) == (
        409,
        "alreadyExists",
    )
    project.zone = "us-central1-a"
    project.launch("one")


def test_an_instance_is_pending_for_a_while_and_then_tells_its_host(bare: Any) -> None:
    bare.cloud.turn(clock=1000.0, pending_s=30)
    bare.launch("one", "a3-ultragpu-8g", bare.ultra(bare.nets(2), bare.roce()))
    assert (got(bare)["status"], "physicalHost" in got(bare)["resourceStatus"]) == ("STAGING", False)
    bare.cloud.turn(clock=1031.0)
    told = got(bare)["resourceStatus"]["physicalHost"]
    assert (got(bare)["status"], told[0], len(told.strip("/").split("/"))) == ("RUNNING", "/", 3)


def test_hosts_of_a_cluster_are_distinct_and_share_racks(project: Any) -> None:
    policy = project.policy()
    for number in range(16):
        project.launch(f"i{number}", "n2-standard-2", resourcePolicies=[policy])
    rows = project.call("GET", f"{ZONE}/instances")["items"]
    hosts = [row["resourceStatus"]["physicalHost"] for row in rows]
    racks = [host.rpartition("/")[0] for host in hosts]
    assert len(set(hosts)) == 16
    assert 1 < len(set(racks)) < 16
    assert racks != sorted(racks, key=racks.index), "the order of creation is not that of the hall"


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        (
            {"machineType": "zones/us-central1-b/machineTypes/a9-none"},
            "invalid",
            "'a9-none' does not exist in zone",
        ),
        ({"machineType": "zones/us-central1-a/machineTypes/e2-medium"}, "invalid", "of zone 'us-central1-a'"),
        ({"labels": {"Orch": "x"}}, "invalid", "Label keys"),
        ({"labels": {"orch": "X"}}, "invalid", "Label values"),
        ({"labels": {f"k{n}": "" for n in range(65)}}, "invalid", "at most 64"),
        ({"tags": {"items": ["no_tag"]}}, "invalid", "regex"),
        ({"metadata": {"items": [{"key": "user-data", "value": "x" * 262145}]}}, "invalid", "262144"),
        ({"metadata": {"items": [{"key": "a b", "value": ""}]}}, "invalid", "regex"),
        ({"metadata": {"items": [{"key": "a"}, {"key": "a"}]}}, "invalid", "Duplicate"),
        ({"disks": []}, "invalid", "boot disk"),
        ({"serviceAccounts": [{}, {}]}, "invalid", "service account"),
        ({"resourcePolicies": ["none"]}, "notFound", "resourcePolicies/none"),
    ],
)
def test_what_an_instance_may_not_ask_for(
    project: Any, refused: Any, change: dict[str, Any], code: str, part: str
) -> None:
    error = refused(project.launch, "one", **change)
    assert (error.code, part in error.message) == (code, True), error


def test_a_type_is_in_its_zones_only(project: Any, refused: Any) -> None:
    project.zone = "us-central1-f"
    error = refused(project.launch, "one", "a3-megagpu-8g")
    assert error.message.endswith(
        "Machine type with name 'a3-megagpu-8g' does not exist in zone 'us-central1-f'."
    )
    assert refused(project.call, "GET", "zones/us-central1-f/machineTypes/a3-megagpu-8g").code == "notFound"
    project.cloud.turn(offered={"a3-megagpu-8g": ["us-central1-f"]})
    project.launch("one", "a3-megagpu-8g")


def test_disks_fit_the_image_and_the_type(project: Any, refused: Any) -> None:
    def disk(**params: Any) -> list[dict[str, Any]]:
        base = {"sourceImage": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"}
        return [{"boot": True, "autoDelete": True, "initializeParams": {**base, **params}}]

    error = refused(project.launch, "one", disks=disk(diskSizeGb="5"))
    assert "cannot be smaller than the image size (10 GB)" in error.message
    gone = disk(sourceImage="projects/ubuntu-os-cloud/global/images/none")
    assert refused(project.launch, "one", disks=gone).code == "notFound"
    arm = disk(sourceImage="projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts-arm64")
    assert refused(project.launch, "one", disks=arm).code == "invalid"
    error = refused(
        project.launch, "one", "a4-highgpu-8g", disks=disk(diskType="zones/us-central1-b/diskTypes/pd-ssd")
    )
    assert (error.code, error.message) == (
        "badRequest",
        "pd-ssd disk type cannot be used by a4-highgpu-8g machine type.",
    )


SPOT = {
    "provisioningModel": "SPOT",
    "preemptible": True,
    "automaticRestart": False,
    "onHostMaintenance": "TERMINATE",
}
FLEX = {"provisioningModel": "FLEX_START", "automaticRestart": False, "onHostMaintenance": "TERMINATE"}
NONE = {"consumeReservationType": "NO_RESERVATION"}


AFFINE = {"reservationAffinity": NONE}


@pytest.mark.parametrize(
    ("machine", "more", "part"),
    [
        ("a2-highgpu-1g", {"scheduling": {}}, "do not support live migration"),
        (
            "a2-highgpu-1g",
            {"scheduling": {**SPOT, "automaticRestart": True}},
            "preemptible be false when AutomaticRestart",
        ),
        (
            "a2-highgpu-1g",
            {"scheduling": {**SPOT, "onHostMaintenance": "MIGRATE"}},
            "onHostMaintenance TERMINATE",
        ),
        ("a4x-highgpu-4g", {"scheduling": FLEX, **AFFINE}, "Not supported by machine type"),
        ("a2-highgpu-1g", {"scheduling": FLEX}, "must not consume reservations"),
        ("a2-highgpu-1g", {"scheduling": FLEX, **AFFINE}, "maxRunDuration"),
        (
            "a2-highgpu-1g",
            {"scheduling": {**FLEX, "maxRunDuration": {"seconds": "700000"}}, **AFFINE},
            "7 days",
        ),
        (
            "a2-highgpu-1g",
            {"scheduling": {**FLEX, "maxRunDuration": {"seconds": "60"}}, **AFFINE},
            "10 minutes",
        ),
        ("e2-medium", {"scheduling": FLEX, **AFFINE}, "Not supported"),
        (
            "e2-medium",
            {"scheduling": {"instanceTerminationAction": "DELETE"}},
            "Spot instances or with a limited run time",
        ),
        ("e2-medium", {"scheduling": {"provisioningModel": "CHEAP"}}, "Unknown provisioning model"),
        (
            "a3-highgpu-8g",
            {"scheduling": {"provisioningModel": "RESERVATION_BOUND"}},
            "must name a reservation",
        ),
    ],
)
def test_scheduling_rules(project: Any, refused: Any, machine: str, more: dict[str, Any], part: str) -> None:
    project.zone = "us-central1-a"
    error = refused(project.launch, "one", machine, **more)
    assert part in error.message, error


def test_good_scheduling_is_taken(project: Any) -> None:
    project.launch("spot", "a2-highgpu-1g", scheduling={**SPOT, "instanceTerminationAction": "DELETE"})
    limited = {**FLEX, "maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "DELETE"}
    project.launch("flex", "a2-highgpu-1g", scheduling=limited, reservationAffinity=NONE)
    assert got(project, "spot")["scheduling"]["preemptible"] is True


def test_a_run_ends_when_its_time_is_over(project: Any) -> None:
    project.cloud.turn(clock=1000.0)
    limited = {**FLEX, "maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "DELETE"}
    project.launch("flex", "a2-highgpu-1g", scheduling=limited, reservationAffinity=NONE)
    project.cloud.turn(clock=1000.0 + 3599)
    assert got(project, "flex")["status"] == "RUNNING"
    project.cloud.turn(clock=1000.0 + 3600)
    assert "items" in project.call("GET", f"{ZONE}/instances")
    assert not project.cloud.instances()


def test_labels_tags_and_metadata_change_with_their_fingerprint(project: Any, refused: Any) -> None:
    where = f"{ZONE}/instances/one"
    project.launch("one", labels={"a": "1"})
    stale = got(project)["labelFingerprint"]
    project.call("POST", f"{where}/setLabels", {"labels": {"b": "2"}, "labelFingerprint": stale})
    assert got(project)["labels"] == {"b": "2"}
    error = refused(project.call, "POST", f"{where}/setLabels", {"labels": {}, "labelFingerprint": stale})
    assert (error.status, error.code) == (412, "conditionNotMet")
    tags = {"items": ["x"], "fingerprint": got(project)["tags"]["fingerprint"]}
    project.call("POST", f"{where}/setTags", tags)
    assert refused(project.call, "POST", f"{where}/setTags", tags).code == "conditionNotMet"
    metadata = {"items": [{"key": "k", "value": "v"}], "fingerprint": got(project)["metadata"]["fingerprint"]}
    project.call("POST", f"{where}/setMetadata", metadata)
    assert refused(project.call, "POST", f"{where}/setMetadata", metadata).code == "conditionNotMet"
    assert got(project)["metadata"]["items"] == metadata["items"]


def test_instances_are_listed_by_label_and_in_pages(project: Any) -> None:
    for number in range(5):
        project.launch(f"i{number}", labels={"orch-group": "g" if number % 2 else "h"})

    def names(**params: Any) -> list[str]:
        return [one["name"] for one in project.call("GET", f"{ZONE}/instances", **params).get("items", ())]

    assert names(filter="labels.orch-group=g") == ["i1", "i3"]
    assert names(filter='(labels.orch-group = "g") (name = i3)') == ["i3"]
    assert names(filter="name != i0") == ["i1", "i2", "i3", "i4"]
    first = project.call("GET", f"{ZONE}/instances", maxResults="2")
    assert [one["name"] for one in first["items"]] == ["i0", "i1"]
    assert names(maxResults="2", pageToken=first["nextPageToken"]) == ["i2", "i3"]


def test_the_end_of_an_instance_frees_what_it_held(project: Any, refused: Any) -> None:
    project.launch("one", deletionProtection=True)
    assert refused(project.call, "DELETE", f"{ZONE}/instances/one").code == "invalidUsage"
    project.call("POST", f"{ZONE}/instances/one/setDeletionProtection", deletionProtection="false")
    project.call("DELETE", f"{ZONE}/instances/one")
    assert set(project.cloud.everything().values()) == {"network", "subnetwork"}
    assert refused(project.call, "DELETE", f"{ZONE}/instances/one").code == "notFound"


def test_a_boot_disk_that_is_kept_is_left_over(project: Any, refused: Any) -> None:
    disk = {
        "boot": True,
        "autoDelete": False,
        "initializeParams": {"sourceImage": "projects/debian-cloud/global/images/family/debian-12"},
    }
    project.launch("one", disks=[disk])
    assert refused(project.call, "DELETE", f"{ZONE}/disks/one").code == "resourceInUseByAnotherResource"
    project.call("DELETE", f"{ZONE}/instances/one")
    assert refused(project.launch, "one").code == "RESOURCE_ALREADY_EXISTS"
    project.call("DELETE", f"{ZONE}/disks/one")
    project.launch("one")


def test_an_instance_takes_from_its_template_what_it_does_not_say(project: Any, refused: Any) -> None:
    nic = {"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}
    template = project.template(
        "t", "e2-medium", [nic], labels={"from": "template"}, tags={"items": ["node"]}
    )
    body = {"name": "one", "metadata": {"items": [{"key": "user-data", "value": "#cloud-config"}]}}
    project.call("POST", f"{ZONE}/instances", body, sourceInstanceTemplate=template)
    doc = got(project)
    assert (doc["labels"], doc["tags"]["items"]) == ({"from": "template"}, ["node"])
    assert doc["metadata"]["items"][0]["key"] == "user-data"
    project.call(
        "POST", f"{ZONE}/instances", {**body, "name": "two", "labels": {}}, sourceInstanceTemplate=template
    )
    assert got(project, "two")["labels"] == {}
    project.call("DELETE", "global/instanceTemplates/t")
    error = refused(
        project.call, "POST", f"{ZONE}/instances", {**body, "name": "three"}, sourceInstanceTemplate=template
    )
    assert error.code == "notFound"
    project.template("t", "e2-medium", [nic])
    error = refused(
        project.call, "POST", f"{ZONE}/instances", {**body, "name": "three"}, sourceInstanceTemplate=template
    )
    assert error.code == "notFound", "it has another unique id"


def test_a_template_is_checked(project: Any, refused: Any) -> None:
    nic = {"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}
    assert refused(project.template, "t", "a9-none", [nic]).code == "invalid"
    assert refused(project.template, "t", "e2-medium", []).code == "invalid"
    assert refused(project.template, "t", "e2-medium", [{**nic, "nicType": "FAST"}]).code == "invalid"
    assert (
        refused(project.template, "t", "e2-medium", [{"subnetwork": nic["subnetwork"] + "x"}]).code
        == "notFound"
    )
    assert refused(project.template, "t", "a2-highgpu-1g", [nic], scheduling={}).code == "badRequest"
