"""Plans on RunPod beyond the cases of `golden/`: types, and what happens to the nodes of runs."""

from __future__ import annotations

from kit.clouds.runpod_cases import Case

from orch.components.runpod.candidates import clustered, gpu_of
from orch.components.runpod.planner import only


def test_each_gpu_of_clusters_has_a_plan_of_one() -> None:
    planned = {
        gpu_of(Case.of(name).plan().instance_type)
        for name in Case.planned()
        if Case.of(name).data.get("run", 0) > 1
    }
    assert planned == clustered()


def test_what_one_run_has_stays_as_it_was_made_whatever_the_file_says_by_now() -> None:
    case = Case.of("h100")
    first = case.plan()
    case.data["pins"] = dict(first.pins)
    case.data["fleet"] |= {"env": {"A": "b"}, "image": "other/image:1"}
    case.data = {**case.data, "run": 1}
    second = case.plan()
    assert second.groups[0] == first.groups[0]
    assert [group.indices for group in second.groups] == [(0, 1), (2,)]
    assert not second.groups[1].cluster
    assert only(second, frozenset({"h100-0", "h100-1"})).pins["pods:0"] == first.pins["pods:0"]
    assert "pods:2" not in only(second, frozenset({"h100-0", "h100-1"})).pins


def test_what_runpod_has_no_more_is_not_made_again() -> None:
    case = Case.of("h100")
    first = case.plan()
    case.data["pins"] = dict(first.pins)
    case.data = {**case.data, "run": None, "gone": [f"{first.groups[0].name('h100')}-d"]}
    second = case.plan()
    assert second.groups == ()
    assert second.pins["indices"] == ""
    assert any(reason.startswith("gone: ") for reason in second.reasons)
