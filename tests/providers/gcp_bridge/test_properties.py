"""What the provider knows of pulumi-gcp, and what it says of labels and places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.engine.provider_tables import judge, judge_words

from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.plugin import GcpResources, Settings, schemas
from orch.rehearsal.gcp.plugin import types as known_types

NODE = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
BASTION = "gcp:compute/instance:Instance"
SUBNET = "gcp:compute/subnetwork:Subnetwork"
LINK = "https://www.googleapis.com/compute/v1/"


def sdk_class(token: str) -> Any:
    import pulumi_gcp

    package, rest = token.removeprefix("gcp:").split("/")
    return getattr(getattr(pulumi_gcp, package), rest.split(":")[1])


@pytest.mark.parametrize("token", sorted(known_types()))
def test_properties_are_those_of_the_installed_sdk(token: str) -> None:
    judge(schemas()[token], sdk_class(token))


def test_what_is_said_of_properties_is_said_of_ones_that_are_there() -> None:
    assert set(schemas()) == set(known_types())
    judge_words(schemas())


@pytest.fixture
def types(tmp_path: Path) -> GcpResources:
    settings = Settings("acme", "us-central1", labels={"team": "research"})
    return GcpResources(GcpCloud.create(tmp_path / "gcp.db"), settings)


def test_a_new_thing_has_the_labels_of_the_program_the_provider_and_pulumi(types: GcpResources) -> None:
    planned = types.preview_outputs(NODE, {"name": "n", "labels": {"a": "1"}})
    assert planned["pulumiLabels"] == {"a": "1", "team": "research", "goog-pulumi-provisioned": "true"}
    assert planned["effectiveLabels"] == planned["pulumiLabels"]
    assert planned["instanceId"] is UNKNOWN
    assert types.preview_outputs(NODE, {"labels": {"a": UNKNOWN}})["effectiveLabels"] is UNKNOWN


def test_labels_of_others_stay_and_are_no_difference(types: GcpResources) -> None:
    mine = {"a": "1", "team": "research"}
    state = {"labels": {"a": "1"}, "pulumiLabels": mine, "effectiveLabels": {**mine, "theirs": "x"}}
    inputs = {"labels": {"a": "1"}}
    assert types.diff(NODE, state, inputs) == ([], False)
    assert types.preview_outputs(NODE, {"labels": {"a": "2"}}, state)["effectiveLabels"] == {
        "a": "2",
        "team": "research",
        "theirs": "x",
    }


def test_a_label_of_the_provider_that_changes_is_a_change(types: GcpResources) -> None:
    state = {"labels": {"a": "1"}, "pulumiLabels": {"a": "1"}, "effectiveLabels": {"a": "1"}}
    (change,), _ = types.diff(NODE, state, {"labels": {"a": "1"}})
    assert (change.path, change.replaces) == ("pulumiLabels", False)
    template = "gcp:compute/instanceTemplate:InstanceTemplate"
    (change,), _ = types.diff(template, state, {"labels": {"a": "1"}})
    assert change.replaces


@pytest.mark.parametrize(
    ("new", "replaces"), [("10.0.0.0/20", False), ("10.0.0.0/28", True), ("10.9.0.0/20", True)]
)
def test_a_range_that_grows_is_changed_in_place(types: GcpResources, new: str, replaces: bool) -> None:
    inputs = {"name": "s", "network": "projects/acme/global/networks/n", "ipCidrRange": new}
    state = {**inputs, "ipCidrRange": "10.0.0.0/24", "region": "us-central1", "project": "acme"}
    (change,), _ = types.diff(SUBNET, state, inputs)
    assert (change.path, change.replaces) == ("ipCidrRange", replaces)


def test_another_region_or_project_of_the_provider_replaces(types: GcpResources) -> None:
    inputs = {"name": "s", "network": "projects/acme/global/networks/n", "ipCidrRange": "10.0.0.0/24"}
    state = {**inputs, "region": "us-east4", "project": "other"}
    found, _ = types.diff(SUBNET, state, inputs)
    assert {(change.path, change.replaces) for change in found} == {("region", True), ("project", True)}


def test_a_node_follows_its_template_and_its_own_words_only(types: GcpResources) -> None:
    inputs = {
        "name": "n",
        "zone": "us-central1-a",
        "sourceInstanceTemplate": LINK + "projects/acme/global/instanceTemplates/t?uniqueId=1",
        "metadata": {"user-data": "x"},
    }
    state = {**inputs, "machineType": "a3-megagpu-8g", "tags": ["t-nodes"], "project": "acme"}
    state["networkInterfaces"] = [{"networkIp": "10.0.0.2"}]
    state["pulumiLabels"] = {"team": "research"}
    assert types.diff(NODE, state, inputs) == ([], False)
    changed, _ = types.diff(NODE, state, {**inputs, "metadata": {"user-data": "y"}})
    assert [(change.path, change.replaces) for change in changed] == [("metadata.user-data", False)]
    other = LINK + "projects/acme/global/instanceTemplates/u?uniqueId=2"
    changed, _ = types.diff(NODE, state, {**inputs, "sourceInstanceTemplate": other})
    assert [(change.path, change.replaces) for change in changed] == [("sourceInstanceTemplate", True)]


def test_a_public_address_that_goes_is_a_change_of_a_bastion(types: GcpResources) -> None:
    inputs = {
        "name": "b",
        "zone": "us-central1-a",
        "machineType": "e2-medium",
        "bootDisk": {"initializeParams": {"image": "projects/p/global/images/i"}},
        "networkInterfaces": [{"subnetwork": "projects/acme/regions/us-central1/subnetworks/s"}],
    }
    nic = {
        "subnetwork": LINK + "projects/acme/regions/us-central1/subnetworks/s",
        "accessConfigs": [{"natIp": "203.0.113.1"}],
    }
    disk = {
        "initializeParams": {"image": LINK + "projects/p/global/images/i", "size": 10},
        "autoDelete": True,
    }
    state = {**inputs, "bootDisk": disk, "networkInterfaces": [nic], "project": "acme"}
    state["pulumiLabels"] = {"team": "research"}
    changed, _ = types.diff(BASTION, state, inputs)
    assert [change.path for change in changed] == ["networkInterfaces[0].accessConfigs"]
    assert not changed[0].replaces
