"""The simulated Nebius account as its SDK sees it: tokens, operations, capacity, quotas, what is refused."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.nebius_lab import PROJECT, SUBNET, Lab, LoggedIn, instance

from orch.components.cloud_errors import CloudRefused
from orch.components.nebius.account import methods
from orch.components.nebius.account.client import NebiusClient, is_down
from orch.components.nebius.account.errors import NebiusRefused
from orch.components.nebius.account.methods import GPU_CLUSTER, INSTANCE
from orch.components.nebius.plugin import until_running
from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.nebius.service import sdk_of
from orch.rehearsal.scenario import Failure, Rate
from orch.spec.errors import ExitCode

TYPE = "gpu-h100-sxm_8gpu-128vcpu-1600gb"


def test_a_machine_comes_up_in_steps_with_addresses_and_its_place_in_the_fabric(lab: Lab) -> None:
    cluster = lab.cluster()
    begun = lab.instance(gpu_cluster={"id": cluster})
    states = [(lab.client.get(INSTANCE, begun.resource) or {})["status"]["state"] for _ in range(4)]
    assert states == ["STOPPED", "STARTING", "RUNNING", "RUNNING"]
    lab.client.wait(begun, for_s=60, pause_s=0.01)
    status = lab.client.instances([begun.resource])[begun.resource]["status"]
    assert status["network_interfaces"][0]["ip_address"]["address"].endswith("/32")
    assert len(status["infiniband_topology_path"]["path"]) == 3
    members = lab.client.get(GPU_CLUSTER, cluster)
    assert members is not None
    assert members["status"]["instances"] == [begun.resource]


def test_missing_capacity_is_a_machine_that_falls_back_to_stopped(lab: Lab) -> None:
    lab.cloud.turn(capacity={f"{TYPE}@fabric-2": 1})
    cluster = lab.cluster()
    first = lab.instance("a", gpu_cluster={"id": cluster})
    second = lab.instance("b", gpu_cluster={"id": cluster})
    lab.client.wait(first, for_s=60, pause_s=0.01)
    with pytest.raises(NebiusRefused) as refused:
        lab.client.wait(second, for_s=60, pause_s=0.01)
    assert refused.value.category == "capacity"
    found = lab.client.get(INSTANCE, second.resource)
    assert found is not None
    assert (found["status"]["state"], found["status"].get("reconciling", False)) == ("STOPPED", False)
    stock = lab.client.stock(lab.client.tenant())
    assert stock[TYPE, "eu-north1", "fabric-2"] == (0, 100)
    assert stock[TYPE, "eu-north1", "fabric-3"] == (100, 100)


def test_a_quota_is_refused_at_once_and_by_one_call(lab: Lab) -> None:
    lab.cloud.turn(quotas={"compute.instance.gpu.h100": 8})
    lab.instance("a")
    with pytest.raises(NebiusRefused, match="a quota of the tenant is used up") as refused:
        lab.instance("b")
    assert refused.value.category == "quota"
    assert "compute.instance.gpu.h100 is 8, this needs 16" in str(refused.value.detail)
    assert [call.action for call in lab.cloud.calls].count("InstanceService.Create") == 2


def test_where_nothing_answers_that_is_told_and_not_after_something_did(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sdk = sdk_of(lab.cloud, f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(NebiusRefused) as refused:
            NebiusClient(LoggedIn(sdk), first_s=1.0).projects()
        sdk.sync_close()
    assert (refused.value.category, refused.value.exit_code) == ("transient", ExitCode.PROVISION)
    assert "Nebius has not answered before: is api.nebius.cloud reached" in str(refused.value.detail)
    assert PROJECT in lab.client.projects().values()
    lab.cloud.turn(failures=(Failure(code="ANSWER_LOST", action="InstanceService.Create", nth=1),))
    with pytest.raises(NebiusRefused) as refused:
        lab.instance("a")
    assert "has not answered before" not in str(refused.value.detail)


def test_a_create_whose_answer_was_lost_makes_no_second_machine(lab: Lab) -> None:
    lab.cloud.turn(failures=(Failure(code="ANSWER_LOST", action="InstanceService.Create", nth=1),))
    with pytest.raises(NebiusRefused) as refused:
        lab.instance("a", key="stack-a-1")
    assert refused.value.category == "transient"
    found = lab.client.find(INSTANCE, PROJECT, "a")
    again = lab.instance("a", key="stack-a-1")
    assert found is not None
    assert found["metadata"]["id"] == again.resource
    assert len(lab.cloud.instances()) == 1


def test_a_name_that_is_taken_is_a_conflict(lab: Lab) -> None:
    lab.instance("a", key="one")
    with pytest.raises(NebiusRefused) as refused:
        lab.instance("a", key="other")
    assert refused.value.category == "conflict"


def test_a_token_is_exchanged_for_a_signed_assertion_alone(lab: Lab, tmp_path: Path) -> None:
    exchanges = [call for call in lab.cloud.calls if call.action == "TokenExchangeService.Exchange"]
    assert not exchanges
    for _ in range(4):
        lab.client.projects()
    exchanges = [call for call in lab.cloud.calls if call.action == "TokenExchangeService.Exchange"]
    assert 1 <= len(exchanges) <= 2 < len(lab.cloud.calls) // 2
    assert exchanges[0].params["subject_token"] == "…"
    stranger = NebiusCloud.create(tmp_path / "stranger.db")
    sdk = sdk_of(stranger, lab.address)  # the key of another account
    with pytest.raises(CloudRefused) as refused:
        NebiusClient(LoggedIn(sdk)).projects()
    sdk.sync_close()
    assert refused.value.error is not None
    assert refused.value.error.kind == "credentials"
    assert "NEBIUS_IAM_TOKEN" in str(refused.value.hint)


def test_reads_are_tried_again_when_there_were_too_many(lab: Lab) -> None:
    lab.client.projects()
    lab.cloud.turn(rate={"NetworkService.GetByName": Rate(burst=1, per_second=0.0)}, clock=1_000.0)
    lab.cloud.turn(clock=None)
    lab.client.find(methods.NETWORK, PROJECT, "default-network")
    with pytest.raises(NebiusRefused) as refused:
        lab.client.find(methods.NETWORK, PROJECT, "default-network")
    assert refused.value.category == "rate"
    asked = [call for call in lab.cloud.calls if call.action == "NetworkService.GetByName"]
    assert len(asked) > 2


def test_what_is_made_goes_in_the_order_that_nebius_wants(lab: Lab) -> None:
    cluster = lab.cluster()
    begun = lab.instance(gpu_cluster={"id": cluster})
    lab.client.wait(begun, for_s=60, pause_s=0.01)
    assert "disk" in lab.cloud.everything().values()
    with pytest.raises(NebiusRefused) as refused:
        lab.client.delete(GPU_CLUSTER, cluster, "d1")
    assert refused.value.category == "conflict"
    gone = lab.client.delete(INSTANCE, begun.resource, "d2")
    assert gone is not None
    lab.client.wait(gone, for_s=60, pause_s=0.01)
    assert lab.client.delete(INSTANCE, begun.resource, "d3") is None
    assert lab.client.get(INSTANCE, begun.resource) is None
    assert lab.client.delete(GPU_CLUSTER, cluster, "d4") is not None
    assert lab.cloud.everything() == {}


def test_a_project_is_chosen_in_each_region(lab: Lab) -> None:
    assert lab.client.projects()["eu-north1"] == PROJECT
    assert set(lab.client.projects()) >= {"eu-west1", "us-central1", "uk-south1"}
    assert lab.client.image("ubuntu24.04-cuda13.0", "eu-north1")["metadata"]["name"].endswith("-v2")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "platform": ({"resources": {"platform": "gpu-h900", "preset": "x"}}, "platform gpu-h900 not found"),
    "preset": ({"resources": {"platform": "gpu-h100-sxm", "preset": "2gpu"}}, "has no preset 2gpu"),
    "subnet": ({"network_interfaces": [{"subnet_id": "s", "name": "eth0", "ip_address": {}}]}, "subnet_id"),
    "interface": (
        {"network_interfaces": [{"subnet_id": SUBNET, "name": "Eth0", "ip_address": {}}]},
        "network_interfaces",
    ),
    "address": ({"network_interfaces": [{"subnet_id": SUBNET, "name": "eth0"}]}, "ip_address"),
    "boot": ({"boot_disk": {}}, "boot_disk"),
    "user data": ({"cloud_init_user_data": "x" * 32_769}, "at most 32768"),
    "hostname": ({"hostname": "Upper"}, "hostname"),
    "recovery": ({"preemptible": {"on_preemption": "STOP"}}, "recovery_policy"),
    "spot price": ({"follows_spot_price": {}}, "preemptible machines only"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_machine_is_refused_at_its_field(lab: Lab, case: str) -> None:
    spec, said = WRONG[case]
    with pytest.raises(NebiusRefused) as refused:
        lab.instance(**spec)
    assert refused.value.category == "invalid"
    assert said in str(refused.value.detail)
    assert lab.cloud.everything() == {}


def test_only_presets_of_the_fabrics_platform_join_a_cluster(lab: Lab) -> None:
    h200 = lab.cluster("fabric-7")
    with pytest.raises(NebiusRefused, match="parameter") as refused:
        lab.instance(gpu_cluster={"id": h200})
    assert "fabric fabric-7 is not of platform gpu-h100-sxm" in str(refused.value.detail)
    small = {"platform": "gpu-h200-sxm", "preset": "1gpu-16vcpu-200gb"}
    with pytest.raises(NebiusRefused) as refused:
        lab.instance(resources=small, gpu_cluster={"id": h200})
    assert "does not support GPU clustering" in str(refused.value.detail)
    with pytest.raises(NebiusRefused) as refused:
        lab.cluster("us-central1-a", "elsewhere")
    assert "unknown fabric us-central1-a in eu-north1" in str(refused.value.detail)


def test_a_request_that_nebius_does_not_know_is_no_request(lab: Lab) -> None:
    with pytest.raises(Exception, match="colour"):
        lab.client.create(INSTANCE, {"parent_id": PROJECT, "name": "n"}, {**instance(), "colour": 1}, "k")


def test_a_machine_that_powers_itself_off_is_started_again_unless_its_policy_says_no(lab: Lab) -> None:
    begun = {
        name: lab.instance(name, recovery_policy=policy).resource
        for name, policy in (("recovers", None), ("ends", "FAIL"), ("asked", "FAIL"))
    }
    for each in begun.values():
        until_running(lab.client, {each: each}, 0.01)
    for name in ("recovers", "ends"):
        lab.cloud.shut_down(begun[name])
    lab.client.call("stop it", INSTANCE.method("stop"), {"id": begun["asked"]}, "key")
    until_running(lab.client, {"recovers": begun["recovers"]}, 0.01)
    down = [name for name, each in begun.items() if is_down((lab.client.get(INSTANCE, each) or {})["status"])]
    assert down == ["ends", "asked"]
    # Who was asked to stop did not end itself.
    assert lab.client.ended(list(begun.values())) == {begun["ends"]}
