"""Each type on the simulated account, as the engine asks for it: made, read back, changed, removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orch.rehearsal.account import SimulationError
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.plugin import GcpResources, Settings
from orch.rehearsal.scenario import Knobs

Props = dict[str, Any]
ZONE, REGION, PROJECT = "us-central1-a", "us-central1", "orch-rehearsal"
LINK = "https://www.googleapis.com/compute/v1/"
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"


@dataclass
class Made:
    """A resource as the engine records it."""

    token: str
    id: str
    inputs: Props
    outputs: Props


@dataclass
class Program:
    """Resources of an account, asked for as the engine does it."""

    types: GcpResources
    cloud: GcpCloud
    made: dict[str, Made] = field(default_factory=dict)

    def inputs(self, token: str, given: Props) -> Props:
        added, failures = self.types.check(token, f"urn::{token}::x", {}, given)
        assert failures == []
        return {**given, **added}

    def create(self, kind: str, **given: Any) -> Made:
        token = f"gcp:compute/{kind[0].lower()}{kind[1:]}:{kind}"
        inputs = self.inputs(token, given)
        resource_id, outputs = self.types.create(token, inputs)
        made = self.made[str(given["name"])] = Made(token, resource_id, inputs, outputs)
        assert self.types.diff(token, outputs, inputs) == ([], False), "something differs at once"
        assert self.refresh(made) == outputs, "reading it again gives something else"
        return made

    def refresh(self, made: Made) -> Props | None:
        return self.types.read(made.token, made.id, made.outputs)

    def drifted(self, made: Made) -> list[str]:
        """Paths that differ after a refresh."""
        found = self.refresh(made)
        assert found is not None
        return [change.path for change in self.types.diff(made.token, found, made.inputs)[0]]

    def update(self, made: Made, **given: Any) -> Props:
        inputs = {key: value for key, value in {**made.inputs, **given}.items() if value is not None}
        made.outputs = self.types.update(made.token, made.id, made.outputs, inputs)
        made.inputs = inputs
        assert self.types.diff(made.token, made.outputs, inputs) == ([], False)
        assert self.refresh(made) == made.outputs
        return made.outputs

    def delete(self, made: Made) -> None:
        for _ in range(2):  # the second time it is gone already
            self.types.delete(made.token, made.id, made.outputs)
        assert self.refresh(made) is None

    def asked(self, method: str, path: str, body: Props | None = None) -> Props:
        """A call behind the engine's back."""
        status, answer = self.cloud.request(method, path, {}, body, caller="test")
        assert status == 200, answer
        return answer


@pytest.fixture
def there(tmp_path: Path) -> Program:
    cloud = GcpCloud.create(tmp_path / "gcp.db", knobs=Knobs())
    return Program(GcpResources(cloud, Settings(PROJECT, REGION)), cloud)


@pytest.fixture
def ground(there: Program) -> Program:
    """A network and a subnet."""
    network = there.create("Network", name="n", autoCreateSubnetworks=False, mtu=8896)
    there.create("Subnetwork", name="s", network=network.id, ipCidrRange="10.0.0.0/24")
    return there


def nic(there: Program, **more: Any) -> Props:
    return {"subnetwork": there.made["s"].id, "nicType": "GVNIC", **more}


def template(there: Program, name: str = "t", **more: Any) -> Made:
    image = there.asked("GET", IMAGE)
    given: Props = {
        "machineType": "g2-standard-8",
        "disks": [{"sourceImage": image["selfLink"].removeprefix(LINK), "boot": True, "labels": {"a": "b"}}],
        "networkInterfaces": [nic(there)],
        "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": True},
        "tags": ["nodes"],
        "labels": {"orch-group": "g"},
    }
    return there.create("InstanceTemplate", name=name, **{**given, **more})


def node(there: Program, name: str = "t-0", **more: Any) -> Made:
    made = there.made.get("t") or template(there)
    given: Props = {
        "zone": ZONE,
        "sourceInstanceTemplate": made.outputs["selfLinkUnique"],
        "metadata": {"user-data": "#cloud-config"},
        "labels": {"orch-layout": "1"},
    }
    return there.create("InstanceFromTemplate", name=name, **{**given, **more})


def test_ids_are_those_of_the_real_provider(ground: Program) -> None:
    ids = {name: made.id for name, made in ground.made.items()}
    assert ids == {
        "n": "projects/orch-rehearsal/global/networks/n",
        "s": "projects/orch-rehearsal/regions/us-central1/subnetworks/s",
    }
    assert template(ground).id == "projects/orch-rehearsal/global/instanceTemplates/t"
    assert node(ground).id == "projects/orch-rehearsal/zones/us-central1-a/instances/t-0"


def test_a_network_changes_its_mtu_in_place_and_its_profile_not(ground: Program) -> None:
    network = ground.made["n"]
    assert network.outputs["selfLink"] == LINK + network.id
    assert ground.update(network, mtu=1460)["mtu"] == 1460
    assert ground.update(network, routingMode="GLOBAL")["routingMode"] == "GLOBAL"
    profile = f"projects/{PROJECT}/global/networkProfiles/{ZONE}-vpc-roce"
    found, _ = ground.types.diff(
        network.token, network.outputs, {**network.inputs, "networkProfile": profile}
    )
    assert [(change.path, change.replaces) for change in found] == [("networkProfile", True)]


def test_a_network_in_use_is_not_removed_and_the_refusal_says_by_what(ground: Program) -> None:
    with pytest.raises(SimulationError) as refused:
        ground.delete(ground.made["n"])
    told = str(refused.value)
    assert told.startswith("1 error occurred:\n\t* ")
    assert f"is already being used by '{ground.made['s'].id}'" in told
    ground.delete(ground.made["s"])
    ground.delete(ground.made["n"])
    assert ground.cloud.everything() == {}


def test_a_firewall_rule_tells_what_was_opened_behind_its_back(ground: Program) -> None:
    rule = ground.create(
        "Firewall",
        name="f",
        network=ground.made["n"].id,
        direction="INGRESS",
        allows=[{"protocol": "tcp", "ports": ["22"]}, {"protocol": "icmp"}],
        sourceRanges=["10.0.0.0/8", "192.168.0.0/16"],
        targetTags=["nodes"],
    )
    opened = {"sourceRanges": ["0.0.0.0/0"], "allowed": [{"IPProtocol": "tcp"}, {"IPProtocol": "icmp"}]}
    ground.asked("PATCH", rule.id, opened)
    assert {path.partition("[")[0] for path in ground.drifted(rule)} == {"allows", "sourceRanges"}
    found = ground.refresh(rule)
    assert found is not None
    rule.outputs = found
    ground.update(rule)
    assert ground.update(rule, sourceRanges=None, sourceTags=["bastion"])["sourceRanges"] == []


def test_a_rule_in_a_rdma_network_is_refused_in_googles_words(there: Program) -> None:
    profile = f"projects/{PROJECT}/global/networkProfiles/us-central1-b-vpc-roce"
    network = there.create("Network", name="r", autoCreateSubnetworks=False, networkProfile=profile)
    assert network.outputs["mtu"] == 8896
    with pytest.raises(SimulationError, match=r"Error creating Firewall: googleapi: Error 400: .*, \w+"):
        there.create(
            "Firewall",
            name="f",
            network=network.id,
            direction="INGRESS",
            allows=[{"protocol": "tcp"}],
            sourceRanges=["10.0.0.0/8"],
        )


def test_a_nat_is_a_part_of_its_router(ground: Program) -> None:
    router = ground.create("Router", name="r", network=ground.made["n"].id, description="one")
    nat = ground.create(
        "RouterNat",
        name="nat",
        router="r",
        natIpAllocateOption="AUTO_ONLY",
        sourceSubnetworkIpRangesToNat="ALL_SUBNETWORKS_ALL_IP_RANGES",
    )
    assert nat.id == "orch-rehearsal/us-central1/r/nat"
    assert ground.update(nat, minPortsPerVm=128)["minPortsPerVm"] == 128
    ground.update(router, description="two")
    assert ground.refresh(nat) is not None, "a patch of the router leaves its NAT"
    ground.asked("PATCH", router.id, {"nats": []})
    assert ground.refresh(nat) is None


def test_a_node_has_from_its_template_what_it_does_not_say_itself(ground: Program) -> None:
    made = node(ground)
    out = made.outputs
    assert out["machineType"] == "g2-standard-8"
    assert out["tags"] == ["nodes"]
    assert out["networkInterfaces"][0]["networkIp"].startswith("10.0.0.")
    assert out["networkInterfaces"][0]["subnetwork"] == LINK + ground.made["s"].id
    assert out["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert out["instanceId"].isdigit()
    assert out["currentStatus"] == "RUNNING"
    assert out["labels"] == {"orch-layout": "1"}
    assert out["effectiveLabels"]["goog-pulumi-provisioned"] == "true"
    assert out["bootDisk"]["initializeParams"]["labels"] == {"a": "b"}


def test_labels_and_metadata_of_a_node_change_in_place(ground: Program) -> None:
    made = node(ground)
    number = made.outputs["instanceId"]
    ground.asked(
        "POST",
        f"{made.id}/setLabels",
        {
            "labels": {**made.outputs["effectiveLabels"], "theirs": "x", "orch-layout": "9"},
            "labelFingerprint": made.outputs["labelFingerprint"],
        },
    )
    assert ground.drifted(made) == ["labels.orch-layout"]
    found = ground.refresh(made)
    assert found is not None
    made.outputs = found
    out = ground.update(made, labels={"orch-layout": "1", "more": "2"}, metadata={"user-data": "new"})
    assert out["effectiveLabels"]["theirs"] == "x"
    assert (out["labels"], out["metadata"]) == ({"orch-layout": "1", "more": "2"}, {"user-data": "new"})
    assert out["instanceId"] == number


def test_a_node_that_is_gone_is_told(ground: Program) -> None:
    made = node(ground)
    ground.asked("DELETE", made.id)
    assert ground.refresh(made) is None
    ground.delete(made)


def test_a_node_without_capacity_is_told_as_the_real_provider_does_and_not_kept(ground: Program) -> None:
    ground.cloud.turn(capacity={f"g2-standard-8@{ZONE}": 1})
    node(ground)
    with pytest.raises(SimulationError) as refused:
        node(ground, "t-1")
    assert (
        f"Error waiting for instance to create: The zone 'projects/{PROJECT}/zones/{ZONE}' does not have "
        "enough resources available to fulfill the request."
    ) in str(refused.value)
    assert len(ground.cloud.instances()) == 1
    ground.cloud.turn(capacity={})
    node(ground, "t-1")


def test_a_quota_is_told_in_the_words_of_the_operation(ground: Program) -> None:
    ground.cloud.turn(quotas={"NVIDIA_L4_GPUS": 0})
    with pytest.raises(
        SimulationError, match="Error waiting for instance to create: Quota 'NVIDIA_L4_GPUS' ex"
    ):
        node(ground)


def test_a_template_that_changes_is_another_one(ground: Program) -> None:
    made = template(ground)
    assert made.outputs["selfLinkUnique"].startswith(f"{LINK}{made.id}?uniqueId=")
    changed = {**made.inputs, "tags": ["others"], "labels": {"orch-group": "h"}}
    found, first = ground.types.diff(made.token, made.outputs, changed)
    assert {(change.top, change.replaces) for change in found} == {("tags", True), ("labels", True)}
    assert first, "two cannot have one name"
    assert not ground.types.diff(made.token, made.outputs, {**changed, "name": "u"})[1]


def test_a_bastion_has_a_public_address_and_gives_it_up_in_place(ground: Program) -> None:
    image = ground.asked("GET", IMAGE)["selfLink"].removeprefix(LINK)
    nic = {"subnetwork": ground.made["s"].id, "accessConfigs": [{"networkTier": "PREMIUM"}]}
    made = ground.create(
        "Instance",
        name="b",
        zone=ZONE,
        machineType="e2-medium",
        bootDisk={"initializeParams": {"image": image}},
        networkInterfaces=[nic],
        tags=["bastion"],
        metadata={"user-data": "x"},
        labels={"a": "1"},
    )
    assert made.outputs["networkInterfaces"][0]["accessConfigs"][0]["natIp"]
    assert made.outputs["bootDisk"]["initializeParams"]["image"] == LINK + image
    with pytest.raises(SimulationError, match="please set allow_stopping_for_update = true"):
        ground.update(made, machineType="e2-small")
    ground.delete(made)


FLEX = {
    "machineType": "g2-standard-8",
    "scheduling": {
        "provisioningModel": "FLEX_START",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": 172800},
    },
    "reservationAffinity": {"type": "NO_RESERVATION"},
    "metadata": {"user-data": "x"},
}


def group(there: Program, count: int) -> tuple[Made, Made]:
    made = template(there, **FLEX)
    manager = there.create(
        "InstanceGroupManager",
        name="g",
        zone=ZONE,
        baseInstanceName="t",
        versions=[{"instanceTemplate": made.outputs["selfLinkUnique"]}],
        targetSize=0,
        instanceLifecyclePolicy={"defaultActionOnFailure": "DO_NOTHING"},
        updatePolicy={
            "type": "OPPORTUNISTIC",
            "minimalAction": "REPLACE",
            "maxUnavailableFixed": 1,
            "maxSurgeFixed": 0,
        },
    )
    wanted: Props = {"name": "g-0", "zone": ZONE, "instanceGroupManager": "g", "resizeBy": count}
    request = there.create("ResizeRequest", **wanted, requestedRunDuration={"seconds": "172800"})
    return manager, request


def test_a_request_that_is_met_makes_all_members(ground: Program) -> None:
    manager, request = group(ground, 3)
    assert request.id.endswith("/instanceGroupManagers/g/resizeRequests/g-0")
    assert len(ground.cloud.instances()) == 3
    assert ground.drifted(manager) == ["targetSize"], "which a program lets go by"
    ground.delete(request)
    ground.delete(manager)
    assert ground.cloud.instances() == {}


def test_a_request_without_capacity_is_taken_and_waits_and_can_be_removed(ground: Program) -> None:
    ground.cloud.turn(capacity={f"g2-standard-8@{ZONE}": 2})
    manager, request = group(ground, 3)
    assert request.outputs["state"] == "ACCEPTED"
    assert ground.cloud.instances() == {}
    ground.delete(request)
    ground.delete(manager)


def test_places_are_the_providers_own_where_they_are_not_given(ground: Program) -> None:
    assert ground.made["s"].outputs["region"] == REGION
    assert ground.made["s"].outputs["project"] == PROJECT
    other = ground.types.create(
        "gcp:compute/network:Network", {"name": "n", "autoCreateSubnetworks": False, "project": "another"}
    )
    assert other[0] == "projects/another/global/networks/n"
