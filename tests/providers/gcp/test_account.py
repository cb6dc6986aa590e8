"""The account: its calls are counted, logged, hooked and killed; its knobs, its file and its command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orch.rehearsal.account import SimulationError
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.gcp.account import GcpCloud

PROJECT = "projects/orch-rehearsal"
ZONE = "zones/us-central1-b"

MAKER = """
import sys
from orch.rehearsal.gcp.account import GcpCloud
cloud = GcpCloud(sys.argv[1])
for number in range(int(sys.argv[2])):
    body = {"name": f"net-{sys.argv[3]}-{number}", "autoCreateSubnetworks": False}
    cloud.request("POST", "projects/orch-rehearsal/global/networks", body=body)
"""


def maker(cloud: GcpCloud, times: int, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", MAKER, str(cloud.path), str(times), mark])


def test_calls_are_counted_and_logged_with_who_and_where(project: Any, refused: Any) -> None:
    project.launch("one", metadata={"items": [{"key": "user-data", "value": "secret"}]})
    refused(project.launch, "one")
    refused(project.call, "GET", "global/nothing/here")
    rows = project.cloud.calls
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert [(row.action, row.region, row.error) for row in rows[-3:]] == [
        ("compute.instances.insert", "us-central1-b", None),
        ("compute.instances.insert", "us-central1-b", "alreadyExists"),
        ("GET projects/orch-rehearsal/global/nothing/here", "", "notFound"),
    ]
    assert rows[0].caller == "provider"
    assert "secret" not in json.dumps([dict(row.params) for row in rows])
    assert rows[-3].params["path"] == f"{PROJECT}/{ZONE}/instances/one"


def test_a_path_may_be_a_whole_url(project: Any) -> None:
    for start in (
        "https://compute.googleapis.com/compute/v1/",
        "https://www.googleapis.com/compute/v1/",
        "/",
    ):
        status, found = project.cloud.request("GET", f"{start}{PROJECT}/global/networks/main")
        assert (status, found["name"]) == (200, "main")


def test_an_operation_is_found_again_and_names_its_target(project: Any) -> None:
    for path, body in (
        ("global/networks", {"name": "n", "autoCreateSubnetworks": False}),
        ("regions/us-central1/routers", {"name": "r", "network": f"{PROJECT}/global/networks/main"}),
    ):
        made = project.call("POST", path, body)
        where, _, _ = path.rpartition("/")
        assert made == project.call("GET", f"{where}/operations/{made['name']}")
        assert made == project.call("POST", f"{where}/operations/{made['name']}/wait")
        target = project.call("GET", f"{path}/{body['name']}")
        assert (made["targetId"], made["targetLink"]) == (target["id"], target["selfLink"])
        assert re.fullmatch(r"operation-\d+-[0-9a-f]{13}-[0-9a-f]{8}-[0-9a-f]{8}", made["name"])
        assert project.call("DELETE", f"{path}/{body['name']}")["targetId"] == target["id"]


def test_a_refused_call_changes_nothing_but_the_log(project: Any, refused: Any) -> None:
    before = project.cloud.everything()
    refused(project.launch, "one", disks=[])
    project.cloud.turn(capacity={"e2-medium": 0})
    refused(project.launch, "one")
    assert project.cloud.everything() == before


def test_calls_fail_where_they_are_told_to(project: Any, refused: Any) -> None:
    now = len(project.cloud.calls)
    project.cloud.turn(
        failures=[
            {"code": "backendError", "at": now + 1},
            {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "action": "compute.instances.insert", "nth": 1},
            {"code": "quotaExceeded", "action": "compute.instances.insert", "nth": 2},
        ]
    )
    assert refused(project.call, "GET", "zones").status == 503
    error = refused(project.launch, "one")
    assert (error.status, error.code) == (503, "ZONE_RESOURCE_POOL_EXHAUSTED")
    status, answer = project.cloud.request("POST", f"{PROJECT}/{ZONE}/instances", body={"name": "one"})
    assert (status, answer["error"]["errors"][0]["domain"]) == (403, "usageLimits")
    project.launch("one")


def test_what_is_denied_names_the_permission(project: Any, refused: Any) -> None:
    for name in ("compute.instances.insert", "compute.instances.create"):
        project.cloud.turn(denied=[name])
        error = refused(project.launch, "one")
        assert (error.status, error.code) == (403, "forbidden")
        assert (
            error.message
            == f"Required 'compute.instances.create' permission for '{PROJECT}/{ZONE}/instances/one'"
        )


def test_too_many_calls_are_refused_until_the_bucket_fills(project: Any, refused: Any) -> None:
    project.cloud.turn(clock=1000.0, rate={"compute.zones.list": {"burst": 1, "per_second": 1}})
    project.call("GET", "zones")
    assert refused(project.call, "GET", "zones").code == "rateLimitExceeded"
    project.cloud.turn(clock=1001.0)
    project.call("GET", "zones")


@pytest.mark.parametrize(("when", "there"), [("before", False), ("after", True)])
def test_the_caller_is_killed_at_a_call_with_the_effect_there_or_not(
    bare: Any, when: str, there: bool
) -> None:
    hook = {"action": "compute.networks.insert", "nth": 2, "when": when, "command": 'kill -9 "$ORCH_SIM_PID"'}
    bare.cloud.turn(hooks=[hook])
    assert maker(bare.cloud, 3, "a").wait(120) == -signal.SIGKILL
    assert len(bare.cloud.things("network")) == (2 if there else 1)
    assert [row.done for row in bare.cloud.calls] == [True, there]
    assert maker(bare.cloud, 3, "b").wait(120) == 0, "a kill point fires once"


def test_several_processes_write_at_once(bare: Any) -> None:
    bare.cloud.turn(quotas={"NETWORKS": 100})
    assert [each.wait(120) for each in [maker(bare.cloud, 20, str(mark)) for mark in range(3)]] == [0] * 3
    assert len(bare.cloud.things("network")) == 60
    assert len({doc["id"] for doc in bare.cloud.things("network").values()}) == 60


def test_the_same_seed_gives_the_same_ids(tmp_path: Path) -> None:
    def made(name: str, seed: str) -> str:
        cloud = GcpCloud.create(tmp_path / name, seed=seed)
        cloud.request(
            "POST", f"{PROJECT}/global/networks", body={"name": "n", "autoCreateSubnetworks": False}
        )
        return cloud.things("network")[f"{PROJECT}/global/networks/n"]["id"]

    assert made("a", "1") == made("b", "1") != made("c", "2")


def test_a_file_is_of_one_cloud(tmp_path: Path) -> None:
    GcpCloud.create(tmp_path / "gcp.db")
    Cloud.create(tmp_path / "aws.db")
    with pytest.raises(SimulationError):
        Cloud(tmp_path / "gcp.db")
    with pytest.raises(SimulationError):
        GcpCloud(tmp_path / "aws.db")
    with pytest.raises(SimulationError):
        GcpCloud(tmp_path / "none.db")


def test_projects_do_not_see_each_other(project: Any) -> None:
    status, answer = project.cloud.request("GET", "projects/other/global/networks")
    assert (status, answer["items"]) == (200, [])


def test_images_are_found_by_family_and_name(bare: Any) -> None:
    cloud = bare.cloud
    _, newest = cloud.request("GET", "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts")
    _, same = cloud.request("GET", f"projects/ubuntu-os-cloud/global/images/{newest['name']}")
    assert newest == same
    assert (newest["diskSizeGb"], newest["family"]) == ("10", "ubuntu-2204-lts")
    assert cloud.request("GET", "projects/ubuntu-os-cloud/global/images/family/none")[0] == 404


def test_the_command_shows_an_account_and_changes_it_behind_the_back(project: Any, capsys: Any) -> None:
    from orch.rehearsal.__main__ import main

    def say(*words: str) -> Any:
        assert main([str(project.cloud.path), *words]) == 0
        return json.loads(capsys.readouterr().out)

    project.launch("one", labels={"a": "1"})
    path = f"{PROJECT}/{ZONE}/instances/one"
    assert say("show")[path] == "instance"
    assert list(say("show", "instance")) == [path]
    assert say("set", "capacity.e2-medium@us-central1-b=3")["capacity"] == {"e2-medium@us-central1-b": 3}
    assert say("knobs")["capacity"] == {"e2-medium@us-central1-b": 3}
    say("tag", "one", "orch-layout=other")
    say("untag", "one", "a")
    assert project.cloud.instances()[path]["labels"] == {"orch-layout": "other"}
    say("add-rule", "main", "tcp", "22", "0.0.0.0/0")
    (rule,) = project.cloud.things("firewall").values()
    assert (rule["allowed"], rule["sourceRanges"]) == (
        [{"IPProtocol": "tcp", "ports": ["22"]}],
        ["0.0.0.0/0"],
    )
    say("reservation", "r", "a3-highgpu-1g", "us-central1-b", "2")
    assert say("call", "GET", f"{PROJECT}/{ZONE}/reservations/r")["status"] == "READY"
    say("terminate", "one")
    assert not project.cloud.instances()
    assert say("calls", "--last", "1") == ["10 compute:compute.instances.delete us-central1-b drift ok"]
    assert main([str(project.cloud.path), "terminate", "one"]) == 1
    assert "notFound" in capsys.readouterr().err
