"""Resources of RunPod as the engine asks for them: made, found again, drifted, deleted, waited for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from kit.clouds.runpod_lab import A100, H100, Lab, cluster, pod

from orch.components.runpod.account.client import CLUSTER, POD, VOLUME
from orch.components.runpod.account.errors import ERRORS, RunpodRefused
from orch.components.runpod.plugin import (
    ClusterHandler,
    PodHandler,
    ReadyHandler,
    RunpodHandler,
    VolumeHandler,
)
from orch.providers.orch.handler import OBSERVED, ProviderError, differences
from orch.rehearsal.scenario import Failure, Hook

QUICK = {"pause_s": 0.01, "settle_s": 0.1}


def pods(lab: Lab) -> PodHandler:
    return PodHandler(POD, lambda: lab.client, **QUICK)


def clusters(lab: Lab) -> ClusterHandler:
    return ClusterHandler(CLUSTER, lambda: lab.client, **QUICK)


def volumes(lab: Lab) -> VolumeHandler:
    return VolumeHandler(VOLUME, lambda: lab.client, **QUICK)


def ready(lab: Lab, up_s: float = 60.0) -> ReadyHandler:
    return ReadyHandler(pods(lab), clusters(lab), lambda: lab.client, pause_s=0.01, up_s=up_s)


def inputs(name: str, spec: dict[str, Any], mark: str = "p/s/1", **more: Any) -> dict[str, Any]:
    return {"name": name, "mark": mark, "spec": spec, **more}


def volume(center: str = "US-KS-2", size: int = 100) -> dict[str, Any]:
    return {"dataCenter": center, "size": size}


def test_a_cluster_comes_up_by_rank_and_goes_before_its_volume(lab: Lab) -> None:
    data, _ = volumes(lab).create(inputs("data", volume()))
    mounts = {"network": [{"volumeId": data, "path": "/data"}]}
    resource, _ = clusters(lab).create(inputs("fleet", cluster(2, mounts=mounts)))
    _, state = ready(lab).create({"name": "fleet", "cluster": resource, "nodes": ["n-0", "n-1"]})
    machines = state["machines"]
    assert [machines[node]["address"] for node in ("n-0", "n-1")] == ["10.65.0.2", "10.65.0.3"]
    assert {each["data_center"] for each in machines.values()} == {"US-KS-2"}
    assert len({(each["host"], each["port"]) for each in machines.values()}) == 2
    with pytest.raises(RunpodRefused) as refused:
        lab.client.delete(VOLUME, data)
    assert refused.value.category == "conflict"
    clusters(lab).delete(resource, {})
    volumes(lab).delete(data, {})
    assert lab.cloud.everything() == {}
    clusters(lab).delete(resource, {})  # what is gone is no error
    assert clusters(lab).read(resource, {}) is None


def test_pods_come_up_together_and_a_deleted_one_is_seen_as_gone(lab: Lab) -> None:
    nodes = {f"n-{i}": pods(lab).create(inputs(f"n-{i}", pod()))[0] for i in range(2)}
    _, state = ready(lab).create({"name": "fleet", "pods": nodes})
    assert {node: each["id"] for node, each in state["machines"].items()} == nodes
    assert {each["address"] for each in state["machines"].values()} == {None}
    pods(lab).delete(nodes["n-0"], {})
    assert pods(lab).read(nodes["n-0"], {}) is None
    with pytest.raises(RunpodRefused, match="cannot bring n-0 up") as refused:
        ready(lab).update("fleet", {}, {"name": "fleet", "pods": nodes})
    assert refused.value.category == "gone"


def test_the_id_is_known_before_the_pods_are_there(lab: Lab) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster()))
    assert {each["status"] for each in lab.cloud.instances().values()} == {"PROVISIONING"}
    assert lab.asked("listClusterPods") == 0
    assert lab.client.get(CLUSTER, resource) is not None


@pytest.mark.parametrize("code", ["ANSWER_LOST", "503", "429"])
@pytest.mark.parametrize("kind", ["pod", "cluster", "volume"])
def test_a_create_without_an_answer_makes_one(lab: Lab, code: str, kind: str) -> None:
    handler: RunpodHandler
    handler, spec, action = {
        "pod": (pods(lab), pod(), "createPod"),
        "cluster": (clusters(lab), cluster(), "createCluster"),
        "volume": (volumes(lab), volume(), "createNetworkVolume"),
    }[kind]
    lab.cloud.turn(failures=(Failure(code=code, action=action, nth=1),))
    resource, _ = handler.create(inputs("n", spec))
    assert [found for found in lab.cloud.everything() if found not in lab.cloud.instances()] == (
        [] if kind == "pod" else [resource]
    )
    assert len(lab.cloud.instances()) == {"pod": 1, "cluster": 2, "volume": 0}[kind]
    assert lab.asked(action) == (1 if code == "ANSWER_LOST" else 2)


def test_what_came_late_beside_another_is_taken_away_and_no_volume_ever(lab: Lab) -> None:
    given = inputs("n", pod())
    name = pods(lab).name_of(given)
    first, second = lab.pod(name), lab.pod(name)
    kept, _ = pods(lab).create(given)
    assert {kept} < {first, second}
    assert list(lab.cloud.instances()) == [kept]
    of_volume = inputs("data", volume())
    for _ in range(2):
        lab.volume(volumes(lab).name_of(of_volume), "US-KS-2")
    with pytest.raises(ProviderError, match="there is a network volume data-") as refused:
        volumes(lab).create(of_volume)
    assert refused.value.code == "ORCH357"
    assert len(lab.client.named(VOLUME, volumes(lab).name_of(of_volume))) == 2


@pytest.mark.parametrize("kind", ["pod", "cluster"])
def test_what_came_late_goes_with_what_is_recorded(lab: Lab, kind: str) -> None:
    handler: RunpodHandler = pods(lab) if kind == "pod" else clusters(lab)
    lab.cloud.turn(quotas={"spendLimit": 1000})
    given = inputs("n", pod() if kind == "pod" else cluster())
    recorded, _ = handler.create(given)
    make = lab.pod if kind == "pod" else lab.cluster
    make(handler.name_of(given))
    make("somebody-elses")
    handler.delete(recorded, given)
    names = {each["name"] for each in lab.cloud.instances().values()}
    assert names == {"somebody-elses"}


def test_volumes_of_a_name_stay_when_one_is_deleted(lab: Lab) -> None:
    given = inputs("data", volume())
    recorded, _ = volumes(lab).create(given)
    other = lab.volume(volumes(lab).name_of(given), "US-KS-2")
    volumes(lab).delete(recorded, given)
    assert list(lab.cloud.everything()) == [other]


def test_a_cluster_whose_pods_are_still_being_listed_is_no_drift(lab: Lab) -> None:
    wanted = inputs("n", cluster(3), status="running")
    resource, _ = clusters(lab).create(wanted)
    first, *others = sorted(lab.cloud.instances())
    lab.cloud.lose_pod(first)
    seen = clusters(lab).read(resource, wanted)
    assert seen is not None
    assert seen[OBSERVED] == {"status": "running"}
    for _ in range(3):
        lab.client.members(resource)  # they come up, and one never came
    seen = clusters(lab).read(resource, wanted)
    assert seen is not None
    assert (len(others), seen[OBSERVED]) == (2, {"status": "2 of 3 pods running"})


def test_what_a_killed_call_made_is_taken_over_and_nothing_else(lab: Lab) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster()))
    assert clusters(lab).create(inputs("fleet", cluster()))[0] == resource
    lab.cloud.turn(quotas={"spendLimit": 1000})
    others = [
        clusters(lab).create(inputs("fleet", cluster(), mark="p/other/1"))[0],
        clusters(lab).create(inputs("fleet", cluster(3)))[0],
    ]
    assert len({resource, *others}) == 3


def test_a_volume_of_this_name_elsewhere_is_not_taken(lab: Lab) -> None:
    volumes(lab).create(inputs("data", volume("US-KS-2")))
    with pytest.raises(ProviderError, match="not as it is wanted") as refused:
        volumes(lab).create(inputs("data", volume("EU-RO-1")))
    assert "in US-KS-2" in str(refused.value.where)


def test_missing_capacity_and_a_spend_limit_are_told_by_the_create(lab: Lab) -> None:
    lab.cloud.turn(capacity={A100: 1})
    with pytest.raises(RunpodRefused) as refused:
        clusters(lab).create(inputs("fleet", cluster()))
    error = ERRORS.read(refused.value.text())
    assert error is not None
    assert error.verdict == "next"
    with pytest.raises(RunpodRefused) as refused:
        clusters(lab).create(inputs("fleet", cluster(4, H100)))
    error = ERRORS.read(refused.value.text())
    assert error is not None
    assert (error.kind, error.verdict) == ("quota", "stop")
    assert lab.asked("createCluster") == 2
    assert lab.cloud.everything() == {}


@pytest.mark.parametrize("status", ["EXITED", "ERROR"])
@pytest.mark.parametrize("kind", ["pod", "cluster"])
def test_what_ends_before_it_was_ever_ready_is_told_at_once_and_made_anew(
    lab: Lab, status: str, kind: str
) -> None:
    handler: RunpodHandler = pods(lab) if kind == "pod" else clusters(lab)
    given = inputs("fleet", pod() if kind == "pod" else cluster())
    resource, _ = handler.create(given)

    def waited_for(resource: str) -> dict[str, Any]:
        if kind == "pod":
            return {"name": "fleet", "pods": {"n-0": resource}}
        return {"name": "fleet", "cluster": resource, "nodes": ["n-0", "n-1"]}

    member = next(iter(lab.cloud.instances()))
    lab.cloud.end_container(member, status)
    with pytest.raises(RunpodRefused, match=r"cannot bring n-[01] up") as refused:
        ready(lab).create(waited_for(resource))
    assert f"the pod {member} is {status.lower()}" in str(refused.value.detail)
    error = ERRORS.read(refused.value.text())
    assert error is not None
    assert error.verdict == "again"
    # The next try finds nothing of it, neither by its id nor by its name.
    assert lab.cloud.everything() == {}
    assert handler.read(resource, given) is None
    again, _ = handler.create(given)
    assert again != resource
    assert len(ready(lab).create(waited_for(again))[1]["machines"]) == (1 if kind == "pod" else 2)


def test_what_was_ready_before_is_left_to_its_run_when_it_ends(lab: Lab) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster()))
    given = {"name": "fleet", "cluster": resource, "nodes": ["n-0", "n-1"]}
    _, state = ready(lab).create(given)
    lab.cloud.end_container(next(iter(lab.cloud.instances())))
    with pytest.raises(RunpodRefused) as refused:
        ready(lab).update("fleet", state, given)
    assert "is exited" in str(refused.value.detail)
    assert len(lab.cloud.instances()) == 2


def test_what_has_ended_and_may_not_be_deleted_is_told_with_both_reasons(lab: Lab) -> None:
    resource, _ = pods(lab).create(inputs("n", pod()))
    lab.cloud.end_container(resource, "ERROR")
    lab.cloud.turn(denied=("deletePod",))
    with pytest.raises(RunpodRefused, match="cannot bring n up") as refused:
        ready(lab).create({"name": "fleet", "pods": {"n": resource}})
    assert refused.value.category == "permission"
    assert "is error; and it cannot be deleted: runpod:permission" in str(refused.value.detail)
    error = ERRORS.read(refused.value.text())
    assert error is not None
    assert error.verdict == "stop"


def test_a_cluster_that_is_deleted_while_it_is_waited_for_is_gone(lab: Lab) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster()))
    lab.client.delete(CLUSTER, resource)
    with pytest.raises(RunpodRefused) as refused:
        ready(lab).create({"name": "fleet", "cluster": resource, "nodes": ["n-0", "n-1"]})
    assert refused.value.category == "gone"


def test_pods_are_waited_for_until_all_are_listed(lab: Lab) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster()))
    lab.cloud.lose_pod(sorted(lab.cloud.instances())[0])
    with pytest.raises(RunpodRefused) as refused:
        ready(lab, up_s=0.2).create({"name": "fleet", "cluster": resource, "nodes": ["n-0", "n-1"]})
    assert "(no pod yet): not ready after" in str(refused.value.detail)
    assert refused.value.category == "transient"


def test_a_pod_that_is_lost_while_others_are_waited_for_is_told_at_once(lab: Lab) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster(ports=["8888/http"])))
    lose = f"from orch.rehearsal.runpod.account import RunpodCloud as C; C({str(lab.cloud.path)!r})"
    command = f'{sys.executable} -c "{lose}.lose_pod({sorted(lab.cloud.instances())[0]!r})"'
    lab.cloud.turn(hooks=(Hook(action="listClusterPods", nth=4, command=command),))
    with pytest.raises(RunpodRefused) as refused:
        ready(lab).create({"name": "fleet", "cluster": resource, "nodes": ["n-0", "n-1"]})
    assert "there were 2 pods, and are 1" in str(refused.value.detail)
    assert refused.value.category == "gone"
    assert lab.cloud.everything() == {}


def test_pods_that_are_never_ready_are_named(lab: Lab) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster(ports=["8888/http"])))
    with pytest.raises(RunpodRefused) as refused:
        ready(lab, up_s=0.2).create({"name": "fleet", "cluster": resource, "nodes": ["n-0", "n-1"]})
    assert "n-0 (" in str(refused.value.detail)
    assert "no port 22" in str(refused.value.detail)


@pytest.mark.parametrize("kind", ["pod", "cluster"])
def test_what_ended_is_drift_and_no_change(lab: Lab, kind: str) -> None:
    handler: RunpodHandler = pods(lab) if kind == "pod" else clusters(lab)
    wanted = inputs("n", pod() if kind == "pod" else cluster(), status="running")
    resource, _ = handler.create(wanted)
    assert handler.read(resource, wanted) == {OBSERVED: {"status": "running"}}
    lab.cloud.end_container(next(iter(lab.cloud.instances())))
    seen = handler.read(resource, wanted)
    assert seen == {OBSERVED: {"status": "stopped" if kind == "pod" else "0 of 2 pods running"}}
    assert differences(handler, {**wanted, **seen}, wanted) == []


def test_a_volume_grows_in_place_and_nothing_else_changes(lab: Lab) -> None:
    before, after = inputs("data", volume(size=100)), inputs("data", volume(size=300))
    resource, _ = volumes(lab).create(before)
    (change,) = differences(volumes(lab), before, after)
    assert (change.path, change.replaces) == ("spec.size", False)
    volumes(lab).update(resource, before, after)
    found = lab.client.get(VOLUME, resource)
    assert found is not None
    assert found["size"] == 300
    assert volumes(lab).create(after)[0] == resource
    for other in (volume(size=50), volume("EU-RO-1")):
        (change,) = differences(volumes(lab), before, inputs("data", other))
        assert change.replaces
    (change,) = differences(clusters(lab), inputs("c", cluster(2)), inputs("c", cluster(3)))
    assert change.replaces


def test_a_service_that_does_not_answer_is_a_value_when_it_is_read(lab: Lab) -> None:
    resource, _ = pods(lab).create(inputs("n", pod()))
    lab.cloud.turn(denied=("getPod",))
    seen = pods(lab).read(resource, {})
    assert seen is not None
    assert seen[OBSERVED]["reachable"] is False
    assert "does not let these credentials" in seen[OBSERVED]["reason"]


def test_a_delete_whose_answer_was_lost_is_a_delete(lab: Lab) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster()))
    lab.cloud.turn(failures=(Failure(code="ANSWER_LOST", action="deleteCluster", nth=1),))
    clusters(lab).delete(resource, {})
    assert lab.cloud.everything() == {}


@pytest.mark.parametrize(
    ("given", "failures"),
    [
        ({"name": "f", "cluster": "c", "nodes": ["n"]}, []),
        ({"name": "f", "pods": {"n": "p"}}, []),
        ({"cluster": "c", "nodes": ["n"]}, ["name"]),
        ({"name": "f"}, ["pods"]),
        ({"name": "f", "cluster": "c", "pods": {"n": "p"}, "nodes": ["n"]}, ["pods"]),
        ({"name": "f", "cluster": "c"}, ["nodes"]),
    ],
)
def test_what_is_waited_for_is_one_cluster_or_pods(
    lab: Lab, given: dict[str, Any], failures: list[str]
) -> None:
    assert [name for name, _ in ready(lab).check(given)] == failures
    assert [name for name, _ in pods(lab).check({"name": "n"})] == ["mark", "spec"]


DOOMED = """
import json, sys
from orch.components.runpod.account.client import CLUSTER, Login, RunpodClient
from orch.components.runpod.plugin import ClusterHandler
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.http_service import HttpService

path, verb, text = sys.argv[1:]
cloud = RunpodCloud(path)
client = RunpodClient(Login(cloud.api_key, HttpService(cloud).url))
handler = ClusterHandler(CLUSTER, lambda: client, pause_s=0.01, settle_s=0.1)
handler.create(json.loads(text)) if verb == "create" else handler.delete(text, {})
"""
"""A process that makes or deletes a cluster, and is killed by a hook of the account."""


def doomed(lab: Lab, verb: str, text: str) -> int:
    words = [sys.executable, "-c", DOOMED, str(lab.cloud.path), verb, text]
    return subprocess.run(words, check=False).returncode


@pytest.mark.parametrize(
    ("action", "when", "made"),
    [("listClusters", "after", 0), ("createCluster", "before", 0), ("createCluster", "after", 2)],
)
def test_a_create_that_was_killed_anywhere_is_gone_on_with(
    lab: Lab, action: str, when: Any, made: int
) -> None:
    given = inputs("fleet", cluster())
    lab.cloud.turn(hooks=(Hook(action=action, nth=1, when=when, command="kill -9 $ORCH_SIM_PID"),))
    assert doomed(lab, "create", json.dumps(given)) == -9
    assert len(lab.cloud.instances()) == made
    resource, _ = clusters(lab).create(given)
    assert [row["id"] for row in lab.client.named(CLUSTER, clusters(lab).name_of(given))] == [resource]
    assert len(lab.cloud.instances()) == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_delete_that_was_killed_is_gone_on_with(lab: Lab, when: Any) -> None:
    resource, _ = clusters(lab).create(inputs("fleet", cluster()))
    lab.cloud.turn(hooks=(Hook(action="deleteCluster", nth=1, when=when, command="kill -9 $ORCH_SIM_PID"),))
    assert doomed(lab, "delete", resource) == -9
    clusters(lab).delete(resource, {})
    assert lab.cloud.everything() == {}
