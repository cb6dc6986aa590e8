"""What a namespace bounds: limits that pods have to say, and what of them has no room."""

from __future__ import annotations

from typing import Any

import pytest

from orch.runner.kubernetes.namespace_limits import short_quotas, too_much, with_limits

REQUESTS = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}


def job(**limits: str) -> dict[str, Any]:
    resources = {"requests": REQUESTS, "limits": {"nvidia.com/gpu": "8", **limits}}
    return {"spec": {"template": {"spec": {"containers": [{"name": "job", "resources": resources}]}}}}


def range_of(**words: Any) -> dict[str, Any]:
    return {"metadata": {"name": "bounds"}, "spec": {"limits": [{"type": "Container", **words}]}}


def quota(**hard: str) -> dict[str, Any]:
    rows = {key.replace("_", "."): text for key, text in hard.items()}
    return {"metadata": {"name": "team"}, "spec": {"hard": rows}}


def limits(document: dict[str, Any]) -> dict[str, str]:
    return document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize(
    ("ranges", "quotas", "said"),
    [
        ([], [], {}),
        ([range_of(default={"cpu": "500m", "memory": "1Ti"})], [], {"cpu": "64"}),
        ([range_of(max={"cpu": "500m"})], [], {}),
        ([], [quota(limits_memory="1Ti")], {"memory": "512Gi"}),
        ([], [quota(requests_cpu="1")], {}),
    ],
    ids=["free", "default-too-low", "bound-alone", "quota-of-limits", "quota-of-requests"],
)
def test_a_pod_says_the_limits_that_it_would_be_refused_without(
    ranges: list[Any], quotas: list[Any], said: dict[str, str]
) -> None:
    assert limits(with_limits(job(), ranges, quotas)) == {"nvidia.com/gpu": "8", **said}


def test_a_limit_that_the_task_says_stays() -> None:
    made = with_limits(job(cpu="96"), [range_of(default={"cpu": "1"})], [quota(limits_cpu="100")])
    assert limits(made)["cpu"] == "96"


def test_bounds_of_single_pods_are_told() -> None:
    rows = [range_of(max={"cpu": "4", "memory": "1Ti"}, min={"nvidia.com/gpu": "9"})]
    assert list(too_much(rows, REQUESTS)) == [
        "LimitRange bounds lets a container have 4 of cpu at most, and a pod asks for 64",
        "LimitRange bounds wants 9 of nvidia.com/gpu of a container at least, and a pod asks for 8",
    ]


def test_quotas_are_told_that_have_room_for_fewer_pods() -> None:
    gpus = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.nvidia.com/gpu": "20", "pods": "3"}}}
    assert list(short_quotas([gpus], REQUESTS, 4)) == [
        "ResourceQuota team has room for 2 of 4 pods: 20 of requests.nvidia.com/gpu in all, 8 a pod"
    ]
    assert list(short_quotas([gpus], REQUESTS, 2)) == []
    scoped = {**gpus, "spec": {**gpus["spec"], "scopes": ["BestEffort"]}}
    assert list(short_quotas([scoped], REQUESTS, 4)) == []
