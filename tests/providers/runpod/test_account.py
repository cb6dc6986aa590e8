"""The simulated RunPod account as orch's client sees it: pods, clusters, volumes, money, and what is
refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from kit.clouds.runpod_lab import A100, H100, Lab, cluster, pod

from orch.catalog.errors import NoSdk
from orch.catalog.runpod.prices import gpus_of_pods
from orch.components.cloud_errors import CloudRefused
from orch.components.marks.marked import cloud_name
from orch.components.marks.orphans import RecordedResource, StackSnapshot
from orch.components.registry import backends, orphans
from orch.components.runpod.account.client import CLUSTER, POD, VOLUME, Kind, Login, RunpodClient
from orch.components.runpod.account.errors import RunpodRefused
from orch.rehearsal.__main__ import main as shell
from orch.rehearsal.account import SimulationError
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.runpod.api.routes import route
from orch.rehearsal.scenario import Failure, Rate


def refused(lab: Lab, kind: Kind, body: dict[str, Any]) -> RunpodRefused:
    with pytest.raises(RunpodRefused) as found:
        lab.client.create(kind, {"name": "n", **body})
    return found.value


def test_a_pod_comes_up_in_steps_and_is_terminated_before_it_is_gone(lab: Lab) -> None:
    resource = lab.pod()
    assert [(lab.client.get(POD, resource) or {}).get("status") for _ in range(4)] == [
        "PROVISIONING",
        "STARTING",
        "RUNNING",
        "RUNNING",
    ]
    found = lab.client.get(POD, resource)
    assert found is not None
    assert found["ssh"]["direct"]["username"] == "root"
    assert found["cost"] == 1.59
    assert not [key for key in found if key.startswith("_")]
    lab.client.delete(POD, resource)
    statuses = [httpx.get(f"{lab.url}/v2/pods/{resource}", headers=key(lab)) for _ in range(2)]
    assert [each.status_code for each in statuses] == [200, 404]
    assert statuses[0].json()["status"] == "TERMINATED"
    lab.client.delete(POD, resource)  # what is gone is no error
    assert lab.cloud.everything() == {}


def key(lab: Lab) -> dict[str, str]:
    return {"Authorization": f"Bearer {lab.cloud.api_key}"}


def test_a_pod_without_port_22_is_never_reached_directly(lab: Lab) -> None:
    resource = lab.pod(ports=["8888/http"])
    found = [lab.client.get(POD, resource) for _ in range(3)][-1]
    assert found is not None
    assert (found["status"], found["ssh"]["direct"]) == ("RUNNING", None)


def test_one_call_makes_all_pods_of_a_cluster_in_one_data_center(lab: Lab) -> None:
    resource = lab.cluster(count=4)
    first = lab.client.members(resource)
    assert first is not None
    assert [pod["cluster"] for pod in first] == [{"id": resource, "rank": None}] * 4
    for _ in range(2):
        members = lab.client.members(resource)
    assert members is not None
    assert [pod["cluster"]["rank"] for pod in members] == [0, 1, 2, 3]
    assert len({pod["cluster"]["ip"] for pod in members}) == 4
    assert len({pod["dataCenterId"] for pod in members}) == 1
    found = lab.client.get(CLUSTER, resource)
    assert found is not None
    assert found["pods"] == {"total": 4, "byStatus": {"RUNNING": 4}}
    assert found["primary"]["podId"] == members[0]["id"]
    assert lab.client.named(POD, "c") == []  # members are no pods of their own
    with pytest.raises(RunpodRefused) as refusal:
        lab.client.delete(POD, members[0]["id"])
    assert refusal.value.category == "conflict"
    lab.client.delete(CLUSTER, resource)
    assert lab.client.members(resource) is None
    assert lab.cloud.everything() == {}


def test_missing_capacity_is_told_by_words_alone(lab: Lab) -> None:
    lab.cloud.turn(capacity={A100: 1}, quotas={"spendLimit": 1000})
    found = refused(lab, CLUSTER, cluster(2))
    assert (found.category, found.status) == ("capacity", 400)
    assert found.error is not None
    assert found.error.verdict == "next"
    assert lab.cloud.everything() == {}
    lab.pod(dataCenterIds=["US-KS-2"])
    assert refused(lab, POD, pod(dataCenterIds=["US-KS-2"])).category == "capacity"
    lab.pod("elsewhere", dataCenterIds=[])
    stock = lab.client.stock("POD", 1)
    assert (A100, "US-KS-2") not in stock
    assert stock[H100, "US-KS-2"] == "HIGH"


def test_what_no_cluster_is_sold_with_looks_like_missing_capacity(lab: Lab) -> None:
    assert ("NVIDIA L4", "US-TX-3") in lab.client.stock("CLUSTER", 8)
    assert refused(lab, CLUSTER, cluster(2, "NVIDIA L4")).category == "capacity"
    lab.cloud.turn(quotas={"spendLimit": 1000})
    assert refused(lab, CLUSTER, cluster(9)).category == "capacity"


def test_the_spend_limit_is_known_before_it_is_hit(lab: Lab) -> None:
    assert lab.client.money().shortfall(52.64) is None
    assert "this needs $105.28 more" in str(lab.client.money().shortfall(105.28))
    found = refused(lab, CLUSTER, cluster(4, H100))
    assert (found.category, found.code) == ("quota", "ORCH313")
    assert "spend limit of $80.00" in str(found.detail)
    assert "Billing" in str(found.hint)
    lab.cluster(count=2, gpu=H100)
    assert lab.client.money().hourly == pytest.approx(63.168)
    lab.cloud.turn(quotas={"clientBalance": 10.0, "spendLimit": 1000})
    assert "the balance is $10.00" in str(lab.client.money().shortfall(25.44))
    assert refused(lab, CLUSTER, cluster(2)).category == "quota"


def test_prices_of_clusters_are_asked_for_by_graphql(lab: Lab) -> None:
    prices = lab.client.cluster_prices()
    assert prices[A100] == pytest.approx(1.908)
    assert "NVIDIA L4" not in prices
    with pytest.raises(RunpodRefused, match="cannot try: RunPod refuses a parameter") as found:
        lab.client.graphql("try", "query { nothing { id } }")
    assert (found.value.category, found.value.status) == ("invalid", 200)


def test_wrong_keys_and_narrow_keys_are_told_apart(lab: Lab) -> None:
    stranger = RunpodClient(Login("rpa_other", lab.url))
    with pytest.raises(RunpodRefused) as found:
        stranger.named(POD, "p")
    stranger.close()
    assert found.value.category == "credentials"
    assert "RUNPOD_API_KEY" in str(found.value.hint)
    assert "rpa_other" not in found.value.text() + repr(Login("rpa_other"))
    lab.cloud.turn(denied=("createCluster",))
    assert refused(lab, CLUSTER, cluster()).category == "permission"


def test_a_read_is_tried_again_and_a_change_is_one_call(lab: Lab) -> None:
    failures = tuple(
        Failure(code=code, action=action, nth=1) for action in ("listPods", "createPod") for code in ("503",)
    )
    lab.cloud.turn(failures=failures)
    assert lab.client.named(POD, "p") == []
    assert lab.asked("listPods") == 2
    with pytest.raises(RunpodRefused) as found:
        lab.pod()
    assert found.value.category == "transient"
    assert lab.asked("createPod") == 1


def test_too_many_calls_say_when_to_come_back(lab: Lab) -> None:
    lab.cloud.turn(rate={"createPod": Rate(burst=1, per_second=0.0)}, clock=1_000.0)
    lab.pod()
    with pytest.raises(RunpodRefused) as found:
        lab.pod("q")
    assert (found.value.category, found.value.retry_after_s) == ("rate", 1.0)


def test_an_answer_may_be_lost_after_the_call_was_done(lab: Lab) -> None:
    lab.cloud.turn(failures=(Failure(code="ANSWER_LOST", action="createCluster", nth=1),))
    with pytest.raises(RunpodRefused) as found:
        lab.cluster()
    assert found.value.category == "transient"
    assert len(lab.client.named(CLUSTER, "c")) == 1


def test_lists_have_pages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orch.components.runpod.account.client.PAGE", 2)
    monkeypatch.setattr("orch.rehearsal.runpod.api.routes.PAGE", 3)
    for name in ("a", "b", "c", "d", "e"):
        lab.pod(name)
        lab.volume(name)
    assert len(lab.client.named(POD, "e")) == 1
    assert lab.asked("listPods") == 3
    assert len(lab.client.named(VOLUME, "e")) == 1
    assert lab.asked("listNetworkVolumes") == 2


def test_a_volume_grows_and_is_kept_while_a_pod_has_it(lab: Lab) -> None:
    resource = lab.volume(size=100)
    lab.client.update(VOLUME, resource, {"size": 200})
    with pytest.raises(RunpodRefused, match="refuses a parameter"):
        lab.client.update(VOLUME, resource, {"size": 50})
    mounts = {"network": [{"volumeId": resource, "path": "/data"}]}
    user = lab.pod(gpu={"id": H100, "count": 1}, mounts=mounts)
    found = lab.client.get(POD, user)
    assert found is not None
    assert found["dataCenterId"] == "US-TX-3"  # where the volume is
    with pytest.raises(RunpodRefused) as kept:
        lab.client.delete(VOLUME, resource)
    assert kept.value.category == "conflict"
    lab.client.delete(POD, user)
    lab.client.delete(VOLUME, resource)
    assert lab.cloud.everything() == {}


WRONG: dict[str, tuple[Kind, dict[str, Any], str]] = {
    "unknown field": (POD, pod(colour="red"), "$.colour"),
    "no image": (POD, pod(image=None), "image"),
    "no GPU": (POD, pod(gpu=None), "exactly one of gpu and cpu"),
    "GPUs": (POD, pod(gpu={"id": A100, "count": 9}), "at most 8 GPUs"),
    "GPU type": (POD, pod(gpu={"id": "H100"}), "unknown GPU type H100"),
    "CUDA": (POD, pod(gpu={"id": A100, "minCudaVersion": "12"}), "minCudaVersion"),
    "two mounts": (
        POD,
        pod(mounts={"network": [{"volumeId": "a", "path": "/a"}, {"volumeId": "b", "path": "/b"}]}),
        "$.mounts.network",
    ),
    "one pod": (CLUSTER, cluster(1), "podCount"),
    "private registry": (CLUSTER, cluster(registry="reg_1"), "$.registry"),
    "CUDA of a cluster": (CLUSTER, cluster(minCudaVersion="12.8"), "$.minCudaVersion"),
    "type": (CLUSTER, cluster(type="training"), "$.type"),
    "size": (VOLUME, {"size": 5, "dataCenter": "US-TX-3"}, "$.size"),
    "data center": (VOLUME, {"size": 50, "dataCenter": "us-tx-3"}, "unknown data center us-tx-3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_refused_at_its_field(lab: Lab, case: str) -> None:
    kind, body, said = WRONG[case]
    found = refused(lab, kind, body)
    assert found.category == "invalid"
    assert said in str(found.detail)
    assert lab.cloud.everything() == {}


def test_the_log_has_no_values_of_variables(lab: Lab) -> None:
    lab.pod(env={"TOKEN": "hidden-value"})
    assert "hidden-value" not in str([call.params for call in lab.cloud.calls])
    found = lab.client.named(POD, "p")[0]
    assert found["env"] == {"TOKEN": "hidden-value"}


def test_what_nobody_recorded_is_looked_for_where_a_fleet_never_had_a_pod(lab: Lab) -> None:
    mark = "p/lab/0a1b2c"
    lost = lab.pod(cloud_name("lab-0-0123ab", mark, pod()))
    component = RecordedResource("orch:fleet:Runpod", "lab", None, {})
    state = StackSnapshot((component,), (), session=lambda name: Login(lab.cloud.api_key, lab.url))
    assert "runpod" in backends.backends_of(each.type for each in state.recorded)
    found = backends.backend("runpod").survey("p", state)
    assert [(each.id, each.mark) for each in found.resources] == [(lost, mark)]


def test_a_network_volume_that_nobody_recorded_is_told_as_data_and_goes_when_it_is_said(lab: Lab) -> None:
    mark = "p/volume.data/0a1b2c"
    lost = lab.volume(cloud_name("data", mark))
    others = lab.volume(cloud_name("data", "q/volume.data/0a1b2c")), lab.volume("somebody-s")
    component = RecordedResource("orch:fleet:Runpod", "lab", None, {})
    state = StackSnapshot((component,), (), session=lambda name: Login(lab.cloud.api_key, lab.url))
    found, places = backends.backend("runpod").survey("p", state), frozenset({("runpod", "US-TX-3")})
    assert [(each.id, each.mark, each.holds_data) for each in found.resources] == [(lost, mark, True)]
    assert list(orphans.delete_orphans(replace(state, marks=frozenset({mark}), places=places))) == []
    assert list(orphans.delete_data(found.resources, state)) == [f"{cloud_name('data', mark)} ({lost})"]
    assert set(lab.cloud.everything()) == set(others)


def test_a_path_without_a_route_is_no_call(lab: Lab) -> None:
    before = len(lab.cloud.calls)
    assert httpx.get(f"{lab.url}/v2/nothing", headers=key(lab)).status_code == 404
    assert httpx.put(f"{lab.url}/v2/pods", headers=key(lab)).headers["Allow"] == "GET, POST"
    assert len(lab.cloud.calls) == before
    assert len({(each.method, each.pattern.pattern) for each in route.all}) == len(route.all)


def test_without_httpx_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(CloudRefused) as refusal:
        RunpodClient(Login("rpa_any"))
    assert ".[runpod]" in str(refusal.value.hint)
    with pytest.raises(NoSdk) as lacking:
        gpus_of_pods(8)
    assert ".[runpod]" in str(lacking.value.hint)


def test_the_shell_shows_an_account_and_takes_a_pod_away(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = lab.pod()
    file = str(lab.cloud.path)
    assert shell([file, "show"]) == 0
    assert json.loads(capsys.readouterr().out) == {resource: "pod"}
    assert shell([file, "set", "quotas.spendLimit=5"]) == 0
    assert lab.cloud.knobs.quotas["spendLimit"] == 5
    capsys.readouterr()
    assert shell([file, "tag", resource, "a=b"]) == 1
    assert "tag is not for an account of RunPod" in capsys.readouterr().err
    assert shell([file, "terminate", "nothing"]) == 1
    assert "there is no pod nothing" in capsys.readouterr().err
    assert shell([file, "terminate", resource]) == 0
    assert lab.cloud.instances() == {}


def test_a_file_that_is_no_account_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runpod.db"
    file.write_text("garbage\n")
    assert shell([str(file), "show"]) == 1
    assert "the file of the simulated cloud cannot be used" in capsys.readouterr().err
    for text in ("garbage\n", ""):
        file.write_text(text)
        with pytest.raises(SimulationError, match="cannot be used"):
            RunpodCloud(file)
