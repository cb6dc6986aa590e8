"""Capacity, quotas, reservations and placement."""

from __future__ import annotations

from typing import Any

import pytest

PROJECT = "projects/orch-rehearsal"
ZONE = "zones/us-central1-b"
SPOT = {
    "provisioningModel": "SPOT",
    "preemptible": True,
    "automaticRestart": False,
    "onHostMaintenance": "TERMINATE",
}


def specific(name: str) -> dict[str, Any]:
    return {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [name],
    }


def test_a_zone_has_so_many_and_the_operation_tells_when_there_are_no_more(
    project: Any, refused: Any
) -> None:
    project.cloud.turn(capacity={"a3-highgpu-1g@us-central1-b": 1, "a3-highgpu-1g@us-central1-c": 0})
    project.launch("one", "a3-highgpu-1g")
    error = refused(project.launch, "two", "a3-highgpu-1g")
    assert (error.status, error.code) == (503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
    assert error.message == (
        f"The zone '{PROJECT}/{ZONE}' does not have enough resources available to fulfill the request.  "
        "'(resource type:compute)'."
    )
    body = project.body(
        "two", "a3-highgpu-1g", [{"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}]
    )
    _, answer = project.cloud.request("POST", f"{PROJECT}/{ZONE}/instances", body=body)
    (told,) = answer["error"]["errors"]
    assert answer["status"] == "DONE"
    info = next(one["errorInfo"] for one in told["errorDetails"] if "errorInfo" in one)
    assert info["metadatas"]["zonesAvailable"] == "us-central1-a"
    _, kept = project.cloud.request("GET", f"{PROJECT}/{ZONE}/operations/{answer['name']}")
    assert kept == answer
    assert list(project.cloud.instances()) == [f"{PROJECT}/{ZONE}/instances/one"]
    project.call("DELETE", f"{ZONE}/instances/one")
    project.launch("two", "a3-highgpu-1g")


def test_types_without_gpus_have_the_short_code(project: Any, refused: Any) -> None:
    project.cloud.turn(capacity={"*@us-central1-b": 0})
    assert refused(project.launch, "one").code == "ZONE_RESOURCE_POOL_EXHAUSTED"


def test_spot_has_a_pool_of_its_own(project: Any, refused: Any) -> None:
    project.cloud.turn(capacity={"a3-highgpu-1g": 0}, spot_capacity={"a3-highgpu-1g": 1})
    project.launch("one", "a3-highgpu-1g", scheduling=SPOT)
    assert "EXHAUSTED" in refused(project.launch, "two", "a3-highgpu-1g", scheduling=SPOT).code
    assert "EXHAUSTED" in refused(project.launch, "two", "a3-highgpu-1g").code


@pytest.mark.parametrize(
    ("machine", "metric", "told"),
    [
        ("a3-highgpu-1g", "NVIDIA_H100_GPUS", "NVIDIA_H100_GPUS"),
        ("a3-megagpu-8g", "NVIDIA_H100_MEGA_GPUS", "GPUS_PER_GPU_FAMILY"),
        ("n2-standard-8", "N2_CPUS", "N2_CPUS"),
        ("e2-medium", "INSTANCES", "INSTANCES"),
    ],
)
def test_quotas_of_a_region(project: Any, refused: Any, machine: str, metric: str, told: str) -> None:
    project.launch("one", machine)
    project.cloud.turn(quotas={metric: {"a3-megagpu-8g": 8, "n2-standard-8": 8}.get(machine, 1)})
    error = refused(project.launch, "two", machine)
    assert (error.status, error.code) == (403, "QUOTA_EXCEEDED")
    assert error.message.startswith(f"Quota '{told}' exceeded.  Limit: ")
    assert error.message.endswith("in region us-central1.")


def test_a_region_tells_limits_and_usage(project: Any) -> None:
    project.launch("one", "a3-highgpu-1g")
    project.launch("two", "a3-highgpu-1g", scheduling=SPOT)
    rows = {one["metric"]: one for one in project.call("GET", "regions/us-central1")["quotas"]}
    assert (rows["NVIDIA_H100_GPUS"]["usage"], rows["PREEMPTIBLE_NVIDIA_H100_GPUS"]["usage"]) == (1.0, 1.0)
    assert rows["INSTANCES"]["usage"] == 2.0
    assert "NVIDIA_H200_GPUS" not in rows, "the API does not tell those of newer GPUs"
    project.cloud.turn(quotas={"NVIDIA_H100_GPUS": 64})
    rows = {one["metric"]: one for one in project.call("GET", "regions/us-central1")["quotas"]}
    assert rows["NVIDIA_H100_GPUS"]["limit"] == 64.0


def test_a_reservation_holds_capacity_for_those_who_name_it(project: Any, refused: Any) -> None:
    project.cloud.turn(capacity={"a3-highgpu-1g@us-central1-b": 2})
    project.cloud.add_reservation("r", "us-central1-b", "a3-highgpu-1g", 2)
    assert "EXHAUSTED" in refused(project.launch, "outside", "a3-highgpu-1g").code
    for number in range(2):
        project.launch(f"i{number}", "a3-highgpu-1g", reservationAffinity=specific("r"))
    held = project.call("GET", f"{ZONE}/reservations/r")
    assert (
        held["status"],
        held["specificReservation"]["count"],
        held["specificReservation"]["inUseCount"],
    ) == ("READY", "2", "2")
    error = refused(
        project.launch, "more", "a3-highgpu-1g", reservationAffinity=specific(f"{PROJECT}/reservations/r")
    )
    assert error.code == "CONDITION_NOT_MET"
    assert error.message == "Specified reservation 'r' does not have available resources for the request."
    assert refused(project.call, "DELETE", f"{ZONE}/reservations/r").code == "resourceInUseByAnotherResource"


def test_a_reservation_is_of_its_zone_type_and_policy(project: Any, refused: Any) -> None:
    policy = project.policy()
    project.cloud.add_reservation("r", "us-central1-b", "a3-highgpu-8g", 2, policy=policy)
    project.cloud.add_reservation("q", "us-central1-b", "a3-highgpu-8g", 2)
    assert (
        "does not exist"
        in refused(project.launch, "one", "a3-highgpu-8g", reservationAffinity=specific("none")).message
    )
    assert (
        "No available resources in specified reservations 'q'"
        in refused(project.launch, "one", "a3-highgpu-1g", reservationAffinity=specific("q")).message
    )
    assert (
        "must have its resource policy"
        in refused(project.launch, "one", "a3-highgpu-8g", reservationAffinity=specific("r")).message
    )
    project.launch("one", "a3-highgpu-8g", reservationAffinity=specific("r"), resourcePolicies=[policy])


def test_a_reservation_of_another_project_is_named_by_its_path(project: Any) -> None:
    project.cloud.add_reservation("r", "us-central1-b", "a3-highgpu-1g", 1, project="hub")
    project.launch("one", "a3-highgpu-1g", reservationAffinity=specific("projects/hub/reservations/r"))
    _, held = project.cloud.request("GET", f"projects/hub/{ZONE}/reservations/r")
    assert held["specificReservation"]["inUseCount"] == "1"


def test_an_open_reservation_is_taken_by_what_matches(project: Any) -> None:
    project.cloud.turn(capacity={"a3-highgpu-1g@us-central1-b": 1})
    project.cloud.add_reservation("r", "us-central1-b", "a3-highgpu-1g", 1, specific=False)
    project.launch("one", "a3-highgpu-1g")


def test_spot_takes_no_reservation(project: Any, refused: Any) -> None:
    project.cloud.add_reservation("r", "us-central1-b", "a3-highgpu-1g", 1)
    error = refused(
        project.launch, "one", "a3-highgpu-1g", scheduling=SPOT, reservationAffinity=specific("r")
    )
    assert "cannot consume reservations" in error.message


def test_a_reservation_needs_capacity(project: Any, refused: Any) -> None:
    project.cloud.turn(capacity={"a3-highgpu-1g": 1})
    body = {
        "name": "r",
        "specificReservation": {"count": "2", "instanceProperties": {"machineType": "a3-highgpu-1g"}},
        "specificReservationRequired": True,
    }
    assert "EXHAUSTED" in refused(project.call, "POST", f"{ZONE}/reservations", body).code


@pytest.mark.parametrize(
    "group",
    [
        {"collocation": "APART"},
        {"vmCount": 1501},
        {"vmCount": 0},
        {"gpuTopology": "2x2"},
        {"availabilityDomainCount": 2},
    ],
)
def test_a_placement_policy_is_checked(project: Any, refused: Any, group: dict[str, Any]) -> None:
    assert refused(project.policy, **group).code == "invalid"


def test_a_1x72_policy_takes_eighteen_machines(project: Any, refused: Any) -> None:
    project.zone = "us-central1-a"
    policy = project.policy(gpuTopology="1x72")
    for number in range(18):
        project.launch(f"i{number}", "a4x-highgpu-4g", resourcePolicies=[policy])
    error = refused(project.launch, "more", "a4x-highgpu-4g", resourcePolicies=[policy])
    assert error.code.isupper()
    assert "No more than 18 instances of machine type a4x-highgpu-4g" in error.message
    project.zone = "us-central1-b"
    assert (
        "in one zone" in refused(project.launch, "far", "a4x-highgpu-4g", resourcePolicies=[policy]).message
    )
    assert (
        "no accelerator topology"
        in refused(project.launch, "a3", "a3-highgpu-8g", resourcePolicies=[policy]).message
    )


def test_a_compact_policy_takes_as_many_as_it_says_and_types_that_can(project: Any, refused: Any) -> None:
    policy = project.policy(vmCount=1)
    project.launch("one", "n2-standard-2", resourcePolicies=[policy])
    assert (
        "No more than 1 instances"
        in refused(project.launch, "two", "n2-standard-2", resourcePolicies=[policy]).message
    )
    assert (
        "Placement policy is not applicable to machine type e2-medium"
        in refused(project.launch, "two", resourcePolicies=[policy]).message
    )
    error = refused(project.call, "DELETE", "regions/us-central1/resourcePolicies/compact")
    assert error.code == "resourceInUseByAnotherResource"


def test_a_policy_of_another_region_is_no_policy_of_the_instance(project: Any, refused: Any) -> None:
    body = {"name": "east", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    project.call("POST", "regions/us-east4/resourcePolicies", body)
    path = f"{PROJECT}/regions/us-east4/resourcePolicies/east"
    assert (
        "not in the instance's region"
        in refused(project.launch, "one", "n2-standard-2", resourcePolicies=[path]).message
    )


def test_an_open_reservation_is_not_named_and_a_dense_one_binds_the_model(project: Any, refused: Any) -> None:
    project.cloud.add_reservation("open", "us-central1-b", "a3-highgpu-1g", 1, specific=False)
    error = refused(project.launch, "one", "a3-highgpu-1g", reservationAffinity=specific("open"))
    assert error.message.endswith("can not be targeted as specificReservationRequired is not set")
    project.cloud.add_reservation("dense", "us-central1-b", "a3-highgpu-1g", 1, dense=True)
    error = refused(project.launch, "one", "a3-highgpu-1g", reservationAffinity=specific("dense"))
    assert "must use provisioningModel RESERVATION_BOUND" in error.message
    bound = {"provisioningModel": "RESERVATION_BOUND", "automaticRestart": False}
    project.launch("one", "a3-highgpu-1g", reservationAffinity=specific("dense"), scheduling=bound)
