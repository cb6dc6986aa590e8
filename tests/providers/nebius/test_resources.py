"""Resources of Nebius as the engine asks for them: made, found again, drifted, deleted, waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kit.clouds.nebius_lab import PROJECT, Lab, instance
from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.property_value import PropertyValue

from orch.components.nebius.account.errors import ERRORS, NebiusRefused
from orch.components.nebius.account.methods import GPU_CLUSTER, NETWORK, SUBNET, Kind
from orch.components.nebius.explain import GANG
from orch.components.nebius.plugin import MARK, InstanceHandler, NebiusGang, NebiusHandler, NebiusProvider
from orch.providers.orch.handler import OBSERVED, ProviderError, differences
from orch.providers.orch.values import UNKNOWN, plain_map, wire_map
from orch.rehearsal.scenario import Failure

TYPE = "gpu-h100-sxm_8gpu-128vcpu-1600gb"


def handler(lab: Lab, kind: Kind) -> NebiusHandler:
    return NebiusHandler(kind, lambda: lab.client, pause_s=0.01)


def instances(lab: Lab) -> InstanceHandler:
    return InstanceHandler(lambda: lab.client, pause_s=0.01)


def running(lab: Lab) -> NebiusGang:
    return NebiusGang(lambda: lab.client, pause_s=0.01)


def inputs(name: str, spec: dict[str, Any], mark: str = "p/s/1", **more: Any) -> dict[str, Any]:
    return {"project": PROJECT, "name": name, "labels": {MARK: mark}, "spec": spec, **more}


def gang_changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What the engine is told of a gang whose machines were these, and are to be those."""
    urn = f"urn:pulumi:lab::tests::orch:fleet:Nebius${GANG}::lab-gang"
    old, new = (
        {"instances": PropertyValue({name: PropertyValue(each) for name, each in machines.items()})}
        for machines in (before, now)
    )
    return asyncio.run(NebiusProvider().diff(api.DiffRequest(urn, "g", old, new, []))).diffs or []


def cluster(lab: Lab, fabric: str = "fabric-2") -> str:
    return handler(lab, GPU_CLUSTER).create(inputs("c", {"infiniband_fabric": fabric}))[0]


def machine(lab: Lab, name: str, cluster_id: str) -> str:
    return instances(lab).create(inputs(name, instance(name, gpu_cluster={"id": cluster_id})))[0]


def test_a_gang_waits_for_machines_that_are_new_and_not_for_those_that_are_gone() -> None:
    two = {"n-0": "a", "n-1": "b"}
    assert gang_changes(two, {"n-0": "a"}) == []
    assert gang_changes(two, {}) == []
    assert gang_changes(two, {**two, "n-2": "c"}) == ['instances["n-2"]']
    assert gang_changes(two, {"n-0": "a", "n-1": "new"}) == ['instances["n-1"]']


def test_a_preview_does_not_know_what_machines_a_gang_that_changes_will_have() -> None:
    urn = f"urn:pulumi:p::p::{GANG}::g"
    old = wire_map({"name": "g", "instances": {"a": "1"}, "machines": {"a": {"id": "1"}}})
    new = wire_map({"name": "g", "instances": {"a": "1", "b": UNKNOWN}})
    request = api.UpdateRequest(urn, "g", old, new, 0.0, [], preview=True)
    told = asyncio.run(NebiusProvider().update(request)).properties
    assert plain_map(told or {})["machines"] is UNKNOWN


def test_a_gang_comes_up_with_addresses_and_goes_again(lab: Lab) -> None:
    network, _ = handler(lab, NETWORK).create(inputs("net", {}))
    subnet, _ = handler(lab, SUBNET).create(inputs("sub", {"network_id": network}))
    of_cluster = cluster(lab)
    nodes = {f"n-{i}": machine(lab, f"n-{i}", of_cluster) for i in range(2)}
    _, state = running(lab).create({"name": "fleet", "instances": nodes})
    addresses = {each["address"] for each in state["machines"].values()}
    assert len(addresses) == 2
    assert all("/" not in each for each in addresses)
    assert {each["id"] for each in state["machines"].values()} == set(nodes.values())
    for each in nodes.values():
        instances(lab).delete(each, {})
    handler(lab, GPU_CLUSTER).delete(of_cluster, {})
    handler(lab, SUBNET).delete(subnet, {})
    handler(lab, NETWORK).delete(network, {})
    assert lab.cloud.everything() == {}
    handler(lab, NETWORK).delete(network, {})  # what is gone is no error
    assert handler(lab, NETWORK).read(network, {}) is None


def test_the_id_is_known_before_the_machine_is_there(lab: Lab) -> None:
    resource = machine(lab, "n", cluster(lab))
    assert lab.cloud.instances()[resource]["status"]["state"] == "STOPPED"


@pytest.mark.parametrize("code", ["ANSWER_LOST", "UNAVAILABLE"])
def test_a_create_without_an_answer_makes_one_machine(lab: Lab, code: str) -> None:
    of_cluster = cluster(lab)
    lab.cloud.turn(failures=(Failure(code=code, action="InstanceService.Create", nth=1),))
    resource = machine(lab, "n", of_cluster)
    assert list(lab.cloud.instances()) == [resource]


def test_what_a_killed_call_made_is_taken_over_and_what_others_made_is_not(lab: Lab) -> None:
    of_cluster = cluster(lab)
    assert cluster(lab) == of_cluster
    with pytest.raises(ProviderError, match="a GPU cluster c that this stack did not make"):
        handler(lab, GPU_CLUSTER).create(inputs("c", {"infiniband_fabric": "fabric-2"}, mark="p/other/1"))


def test_missing_capacity_is_told_as_soon_as_a_machine_falls_back(lab: Lab) -> None:
    lab.cloud.turn(capacity={f"{TYPE}@fabric-2": 1})
    of_cluster = cluster(lab)
    nodes = {f"n-{i}": machine(lab, f"n-{i}", of_cluster) for i in range(2)}
    with pytest.raises(NebiusRefused, match="cannot bring n-1 up") as refused:
        running(lab).create({"name": "fleet", "instances": nodes})
    assert refused.value.category == "capacity"
    error = ERRORS.read(refused.value.text())
    assert error is not None
    assert error.verdict == "next"


def test_a_quota_stops_at_once(lab: Lab) -> None:
    lab.cloud.turn(quotas={"compute.instance.gpu.h100": 8})
    of_cluster = cluster(lab)
    machine(lab, "a", of_cluster)
    with pytest.raises(NebiusRefused) as refused:
        machine(lab, "b", of_cluster)
    assert refused.value.category == "quota"


def test_a_machine_that_was_taken_back_is_drift_and_is_made_anew(lab: Lab) -> None:
    wanted = inputs("n", instance("n", gpu_cluster={"id": cluster(lab)}), status="running")
    resource, _ = instances(lab).create(wanted)
    running(lab).create({"name": "fleet", "instances": {"n": resource}})
    seen = instances(lab).read(resource, wanted)
    assert seen is not None
    assert differences(instances(lab), {**wanted, **seen}, wanted) == []
    lab.cloud.take_back(resource)
    seen = instances(lab).read(resource, wanted)
    assert seen is not None
    (drift,) = differences(instances(lab), {**wanted, **seen}, wanted)
    assert (drift.path, drift.replaces, drift.drifted) == ("status", True, True)


def test_labels_change_in_place_and_nothing_else_does(lab: Lab) -> None:
    of_cluster = cluster(lab)
    before = inputs("c", {"infiniband_fabric": "fabric-2"})
    after = {**before, "labels": {**before["labels"], "team": "a"}}
    (change,) = differences(handler(lab, GPU_CLUSTER), before, after)
    assert (change.path, change.replaces) == ("labels.team", False)
    handler(lab, GPU_CLUSTER).update(of_cluster, before, after)
    seen = handler(lab, GPU_CLUSTER).read(of_cluster, after)
    assert seen is not None
    assert seen[OBSERVED]["labels"] == after["labels"]
    (change,) = differences(handler(lab, GPU_CLUSTER), before, inputs("c", {"infiniband_fabric": "fabric-3"}))
    assert change.replaces


def test_a_service_that_does_not_answer_is_a_value_when_it_is_read(lab: Lab) -> None:
    of_cluster = cluster(lab)
    lab.cloud.turn(denied=("GpuClusterService.Get",))
    seen = handler(lab, GPU_CLUSTER).read(of_cluster, {})
    assert seen is not None
    assert seen[OBSERVED]["reachable"] is False
    assert "does not let these credentials" in seen[OBSERVED]["reason"]
