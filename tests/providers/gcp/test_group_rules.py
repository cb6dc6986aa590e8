"""Managed groups and their resize requests: members all at once, or none yet."""

from __future__ import annotations

from typing import Any

import pytest

PROJECT = "projects/orch-rehearsal"
ZONE = "zones/us-central1-b"
FLEX = {"provisioningModel": "FLEX_START", "automaticRestart": False, "onHostMaintenance": "TERMINATE"}
TYPE = "a3-highgpu-1g"


@pytest.fixture
def group(project: Any) -> str:
    nic = {"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}
    metadata = {"items": [{"key": "user-data", "value": "#cloud-config"}]}
    more = {"scheduling": FLEX, "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}
    template = project.template("t", TYPE, [nic], labels={"orch-group": "work"}, metadata=metadata, **more)
    return project.group("work", template)


def ask(project: Any, group: str, count: int, name: str = "work-0", seconds: int | None = 3600) -> None:
    body: dict[str, Any] = {"name": name, "resizeBy": count}
    if seconds is not None:
        body["requestedRunDuration"] = {"seconds": str(seconds)}
    project.call("POST", f"{group}/resizeRequests", body)


def state(project: Any, group: str, name: str = "work-0") -> str:
    return project.call("GET", f"{group}/resizeRequests/{name}")["state"]


def test_members_are_named_by_the_group_and_have_what_the_template_says(project: Any, group: str) -> None:
    ask(project, group, 3)
    assert state(project, group) == "SUCCEEDED"
    found = project.call("GET", f"{ZONE}/instances", filter="labels.orch-group=work")["items"]
    assert len(found) == 3
    for one in found:
        base, _, end = one["name"].rpartition("-")
        assert (base, len(end)) == ("work", 4)
        items = {item["key"]: item["value"] for item in one["metadata"]["items"]}
        assert items["user-data"] == "#cloud-config"
        assert items["created-by"] == f"{PROJECT}/{group}"
    told = project.call("GET", group)
    assert (told["targetSize"], told["status"]["isStable"]) == (3, True)
    members = project.call("POST", f"{group}/listManagedInstances")["managedInstances"]
    assert {one["name"] for one in members} == {one["name"] for one in found}


def test_without_room_for_all_there_is_none_and_the_request_waits(project: Any, group: str) -> None:
    project.cloud.turn(capacity={f"{TYPE}@us-central1-b": 2})
    ask(project, group, 3)
    assert state(project, group) == "ACCEPTED"
    assert not project.cloud.instances()
    told = project.call("GET", f"{group}/resizeRequests/work-0")["status"]["lastAttempt"]["error"]["errors"]
    assert told[0]["code"].startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
    project.cloud.turn(capacity={f"{TYPE}@us-central1-b": 3})
    assert state(project, group) == "SUCCEEDED", "the next call finds room"
    assert len(project.cloud.instances()) == 3


def test_a_second_request_adds_members(project: Any, group: str) -> None:
    ask(project, group, 1)
    ask(project, group, 2, "work-1")
    assert len(project.cloud.instances()) == 3
    assert len(project.call("GET", f"{group}/resizeRequests")["items"]) == 2


def test_a_request_that_waits_is_cancelled_and_then_deleted(project: Any, group: str, refused: Any) -> None:
    project.cloud.turn(capacity={TYPE: 0})
    ask(project, group, 2)
    assert refused(project.call, "DELETE", f"{group}/resizeRequests/work-0").code == "invalidUsage"
    project.call("POST", f"{group}/resizeRequests/work-0/cancel")
    assert project.call("GET", group)["targetSize"] == 0
    project.cloud.turn(capacity={})
    assert state(project, group) == "CANCELLED"
    assert not project.cloud.instances()
    assert refused(project.call, "POST", f"{group}/resizeRequests/work-0/cancel").code == "invalidUsage"
    project.call("DELETE", f"{group}/resizeRequests/work-0")


def test_the_run_of_members_ends(project: Any, group: str) -> None:
    project.cloud.turn(clock=1000.0)
    ask(project, group, 2, seconds=600)
    project.cloud.turn(clock=1599.0)
    assert len(project.call("GET", f"{ZONE}/instances")["items"]) == 2
    project.cloud.turn(clock=1600.0)
    assert not project.call("GET", f"{ZONE}/instances")["items"]


@pytest.mark.parametrize("seconds", [599, 604801, None])
def test_a_run_has_bounds_and_is_required(
    project: Any, group: str, refused: Any, seconds: int | None
) -> None:
    assert refused(ask, project, group, 1, seconds=seconds).code in {"invalid", "required"}


def test_a_request_is_for_some_and_at_most_what_the_group_takes(
    project: Any, group: str, refused: Any
) -> None:
    assert refused(ask, project, group, 0).code == "required"
    assert refused(ask, project, group, 1001).code == "invalid"
    ask(project, group, 1)
    assert refused(ask, project, group, 1).code == "alreadyExists"


@pytest.mark.parametrize(
    ("machine", "more", "part"),
    [
        ("n2-standard-2", {}, "with GPUs"),
        (TYPE, {"scheduling": {"provisioningModel": "SPOT", "automaticRestart": False}}, "Spot"),
        (TYPE, {"scheduling": FLEX, "resourcePolicies": ["compact"]}, "placement policy"),
    ],
)
def test_templates_that_resize_requests_do_not_take(
    project: Any, refused: Any, machine: str, more: dict[str, Any], part: str
) -> None:
    project.policy()
    nic = {"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}
    affinity = {"consumeReservationType": "NO_RESERVATION"}
    template = project.template("t", machine, [nic], reservationAffinity=affinity, **more)
    assert part in refused(ask, project, project.group("work", template), 1).message


def test_a_workload_policy_of_1x72_takes_eighteen(project: Any, refused: Any) -> None:
    body = {"name": "w", "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "1x72"}}
    project.call("POST", "regions/us-central1/resourcePolicies", body)
    nic = {"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}
    policy = f"{PROJECT}/regions/us-central1/resourcePolicies/w"
    template = project.template("t", "a4x-highgpu-4g", [nic])
    group = project.group("work", template, 19, resourcePolicies={"workloadPolicy": policy})
    assert len(project.cloud.instances()) == 18
    told = project.call("GET", group)
    assert (told["status"]["isStable"], told["currentActions"]["creating"]) == (False, 1)
    assert "not supported for a4x-highgpu-4g" in refused(ask, project, group, 1).message
    (one, *_) = project.cloud.instances().values()
    assert one["resourcePolicies"][0].endswith(policy)
    assert (
        refused(project.call, "DELETE", "regions/us-central1/resourcePolicies/w").code
        == "resourceInUseByAnotherResource"
    )


@pytest.mark.parametrize(
    "workload",
    [
        {"type": "FAST"},
        {"type": "HIGH_AVAILABILITY", "acceleratorTopology": "1x72"},
        {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "3x3"},
    ],
)
def test_a_workload_policy_is_checked(project: Any, refused: Any, workload: dict[str, Any]) -> None:
    body = {"name": "w", "workloadPolicy": workload}
    assert refused(project.call, "POST", "regions/us-central1/resourcePolicies", body).code == "invalid"


def test_a_group_by_size_makes_as_many_as_there_are_and_waits_for_the_rest(project: Any) -> None:
    nic = {"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}
    template = project.template("t", TYPE, [nic])
    project.cloud.turn(capacity={TYPE: 1})
    group = project.group("work", template, 2)
    told = project.call("GET", group)
    assert (
        len(project.cloud.instances()),
        told["status"]["isStable"],
        told["currentActions"]["creating"],
    ) == (1, False, 1)
    project.call("POST", f"{group}/resize", size="0")
    assert not project.cloud.instances()


def test_a_template_in_use_stays_and_the_end_of_a_group_is_that_of_its_members(
    project: Any, group: str, refused: Any
) -> None:
    ask(project, group, 2)
    assert (
        refused(project.call, "DELETE", "global/instanceTemplates/t").code == "resourceInUseByAnotherResource"
    )
    project.call("DELETE", group)
    project.call("DELETE", "global/instanceTemplates/t")
    assert set(project.cloud.everything().values()) == {"network", "subnetwork"}


def test_a_member_that_is_deleted_is_not_made_again_when_the_group_does_nothing(
    project: Any, group: str
) -> None:
    ask(project, group, 2)
    (one, _) = project.cloud.instances()
    project.call("DELETE", one.removeprefix(f"{PROJECT}/"))
    assert project.call("GET", group)["targetSize"] == 1
    (left,) = project.cloud.instances()
    project.call("POST", f"{group}/deleteInstances", {"instances": [left]})
    assert project.call("GET", group)["targetSize"] == 0


def test_a_group_takes_a_new_template_for_members_to_come(project: Any, group: str) -> None:
    nic = {"subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/main"}
    new = project.template("t2", TYPE, [nic], labels={"version": "two"})
    project.call("PATCH", group, {"versions": [{"instanceTemplate": new}]})
    project.call("DELETE", "global/instanceTemplates/t")
    project.call("POST", f"{group}/resize", size="1")
    (one,) = project.cloud.instances().values()
    assert one["labels"] == {"version": "two"}


def test_a_group_is_checked(project: Any, group: str, refused: Any) -> None:
    template = f"{PROJECT}/global/instanceTemplates/t"
    assert refused(project.group, "big", template, 1001).code == "invalid"
    assert refused(project.group, "long", template, baseInstanceName="n" * 59).code == "invalid"
    assert refused(project.group, "gone", f"{template}x").code == "notFound"
    assert refused(project.group, "work", template).code == "alreadyExists"


def test_repairs_are_off_in_a_group_with_resize_requests(project: Any, group: str, refused: Any) -> None:
    project.call("PATCH", group, {"instanceLifecyclePolicy": {"defaultActionOnFailure": "REPAIR"}})
    assert "Repairs must be turned off" in refused(ask, project, group, 1).message


def test_flex_start_counts_as_preemptible(project: Any, group: str) -> None:
    ask(project, group, 2)
    rows = {one["metric"]: one["usage"] for one in project.call("GET", "regions/us-central1")["quotas"]}
    assert (rows["PREEMPTIBLE_NVIDIA_H100_GPUS"], rows["NVIDIA_H100_GPUS"]) == (2.0, 0.0)


def test_a_request_beyond_the_quota_waits_and_tells_why(project: Any, group: str) -> None:
    project.cloud.turn(quotas={"PREEMPTIBLE_NVIDIA_H100_GPUS": 1})
    ask(project, group, 2)
    told = project.call("GET", f"{group}/resizeRequests/work-0")
    assert told["state"] == "ACCEPTED"
    assert told["status"]["lastAttempt"]["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"
