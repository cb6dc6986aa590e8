"""What becomes of a GCP fleet that is up when its file changes; the simulated account is the judge."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.clouds.cloud_engine import quiet
from kit.clouds.gcp_engine import Stack, stack

from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.stacks.events.masking import SECRET_MARK
from orch.stacks.plans import request
from orch.stacks.plans.request import FleetRequest, ended_nodes
from orch.stacks.provisioning import operations
from orch.stacks.runs.sweep import sweep
from orch.stacks.stack.state import StackState

TYPE = "g2-standard-8"
COPIES_OF_LABELS = ["effectiveLabels", "pulumiLabels"]
SECRET = {SECRET_MARK: "1b47061264138c4ac30d75fd1eb44270"}

pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture
def lab(tmp_path: Path) -> Stack:
    return stack(tmp_path / "project")


def fleet(nodes: int | str = 2, **more: Any) -> Fleet:
    base = {"type": "fleet", "name": "train", "backends": ["gcp"], "placement": "cluster"}
    base |= {"nodes": str(nodes), "instance_types": [TYPE], "regions": ["us-central1"]}
    return Fleet.model_validate({**base, "network": {"bastion": False}, **more})


def pending(changes: Any) -> list[tuple[str, str]]:
    return [(change.op, change.name) for change in changes if change.op != "same"]


def ids(lab: Stack) -> dict[str, str]:
    """Node -> the number that no other instance has, or had."""
    return {each["labels"]["orch-urn"].rpartition("__")[2]: each["id"] for each in lab.live(TYPE)}


def test_a_fleet_that_begins_without_nodes_keeps_what_it_gets(lab: Stack) -> None:
    def asked(nodes: str) -> Fleet:
        return fleet(nodes, placement="any")

    assert pending(lab.up(asked("0..4"))) == [("create", "train")]
    assert lab.cloud.everything() == {}
    operations.up(lab.project, FleetRequest(asked("0..4"), lab.folder, count=2), quiet)
    assert set(ids(lab)) == {"train-0", "train-1"}
    operations.remove_nodes(lab.project, "train", [0], quiet)
    assert pending(lab.preview(asked("0..4"))) == []
    # Nodes below the minimum do not end themselves: new ones start with that.
    assert pending(lab.preview(asked("2..4"))) == [("create", "train-0"), ("replace", "train-template")]
    operations.remove_nodes(lab.project, "train", [1], quiet)
    assert pending(lab.up(asked("0..4"))) == []
    lab.down()
    assert lab.cloud.everything() == {}


def test_a_fleet_grows_shrinks_is_replaced_and_gets_a_bastion_as_its_file_says(lab: Stack) -> None:
    lab.up(fleet())
    before = ids(lab)
    # The engine encrypts every secret anew at each write: a node has none of its own.
    assert secrets_of_nodes(lab) == {"train-0": [], "train-1": []}
    # A newer start script is for new nodes: growing touches none.
    grown = pending(lab.up(fleet(3, init=["echo new"])))
    assert ("create", "train-2") in grown
    assert {name for op, name in grown if op != "create"} <= {"train-template"}
    after = ids(lab)
    assert before.items() < after.items()
    # But steps of the file, which may hold secrets.
    assert secrets_of_nodes(lab)["train-2"] == ["metadata"]
    assert len(lab.cloud.things("instance-template")) == 1
    assert pending(lab.preview(fleet(3, init=["echo new"]))) == []

    # Shrinking takes the last.
    shrunk = pending(lab.up(fleet(1, init=["echo new"])))
    assert [name for op, name in shrunk if op == "delete"] == ["train-1", "train-2"]
    assert ids(lab) == {name: after[name] for name in after if name.endswith("0")}

    # What only a new instance can have replaces it.
    before = ids(lab)
    local: dict[str, Any] = {"scratch": {"path": "/local"}}
    changed = pending(lab.up(fleet(1, **local)))
    assert [op for op, name in changed if name == "train-0"] == ["replace"]
    assert ids(lab).keys() == before.keys()
    assert ids(lab) != before
    assert pending(lab.preview(fleet(1, **local))) == []

    # A bastion and its rules come beside the nodes, and go with the fleet.
    before = ids(lab)
    wanted = fleet(1, network={"bastion": True, "ssh_cidrs": ["198.51.100.0/24"]}, **local)
    changed = pending(lab.up(wanted))
    assert ("create", "train-bastion") in changed
    assert ids(lab).items() >= before.items()
    bastion = lab.instance(next(each["name"] for each in lab.live("e2-medium")))
    assert bastion["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    assert (
        lab.state().nodes[0].ssh.jump[0].address
        == bastion["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    )
    assert pending(lab.preview(wanted)) == []
    assert lab.drift() == ()
    lab.down()
    assert lab.cloud.everything() == {}


def test_google_deletes_all_machines_when_the_time_of_their_fleet_is_over(
    lab: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_bastion: dict[str, Any] = {"network": {"bastion": True, "ssh_cidrs": ["198.51.100.0/24"]}}
    with pytest.raises(PlanErrors) as refused:
        lab.plan(fleet(1, ttl="200d", **with_bastion))
    assert [each.code for each in refused.value.findings if each.severity.value == "error"] == ["ORCH234"]
    lab.up(fleet(1, ttl="2h", **with_bastion))
    told = {each["name"]: each["scheduling"] for each in lab.live()}
    assert len(told) == 2
    assert {each["instanceTerminationAction"] for each in told.values()} == {"DELETE"}
    (end,) = {each["terminationTime"] for each in told.values()}
    assert pending(lab.preview(fleet(1, ttl="2h", **with_bastion))) == []
    # Only new nodes get another one.
    longer = lab.plan(fleet(1, ttl="3h", **with_bastion))
    assert {name for op, name in pending(longer.changes)} == {"train-template"}
    assert [each.path for each in longer.findings if each.code == "ORCH232"] == ["ttl"]

    lab.cloud.turn(clock=datetime.fromisoformat(end.replace("Z", "+00:00")).timestamp())
    monkeypatch.setattr(request, "time", SimpleNamespace(time=lambda: time.time() + 7201))
    over = lab.plan(fleet(1, ttl="2h", **with_bastion))
    assert (over.pending, [each.code for each in over.findings]) == (False, ["ORCH233"])
    assert lab.up(fleet(4, ttl="2h", **with_bastion)) == ()
    assert all(each.name in ("train-0", "train-bastion") for each in lab.drift())
    assert lab.live() == []
    lab.down()
    assert lab.cloud.everything() == {}


def secrets_of_nodes(lab: Stack) -> dict[str, list[str]]:
    """Node -> its outputs that the state holds as secrets."""
    file = lab.project.checkpoint("train")
    assert file is not None
    return {
        resource["urn"].rpartition("::")[2]: [
            name for name, value in resource["outputs"].items() if SECRET_MARK in str(value)
        ]
        for resource in json.loads(file.read_text())["checkpoint"]["latest"]["resources"]
        if resource["type"].endswith(":InstanceFromTemplate")
    }


def test_nodes_that_an_earlier_version_made_stay_as_they_are_with_the_keys_it_gave_them(lab: Stack) -> None:
    lab.up(fleet())
    shown = {node.name: node.ssh.host_key for node in lab.state().nodes}
    assert all(node.machine for node in lab.state().nodes)
    before = ids(lab)
    as_an_earlier_version_left_it(lab)
    assert pending(lab.preview(fleet())) == []
    grown = pending(lab.up(fleet(3)))
    assert [name for op, name in grown if op == "create"] == ["train-2"]
    assert before.items() < ids(lab).items()
    *old, new = lab.state().nodes
    for node in old:
        assert node.machine is None
        assert node.ssh.host_key.startswith("ssh-ed25519 ")
        assert node.ssh.host_key != shown[node.name]
    assert new.machine == ids(lab)["train-2"]
    assert secrets_of_nodes(lab) == dict.fromkeys(("train-0", "train-1"), COPIES_OF_LABELS) | {"train-2": []}
    assert pending(lab.preview(fleet(3))) == []


def as_an_earlier_version_left_it(lab: Stack) -> None:
    """Each node with metadata of its own, which has its host key, and its labels kept as a secret; no word of
    the machine in the state."""
    own = {"user-data": "#cloud-config\nssh_keys:\n  ed25519_private: |\n    secret\n"}
    items = [{"key": key, "value": value} for key, value in own.items()]
    for each in lab.live(TYPE):
        path = each["selfLink"].partition("/v1/")[2]
        body = {"items": items, "fingerprint": each["metadata"]["fingerprint"]}
        assert lab.cloud.request("POST", f"{path}/setMetadata", {}, body)[0] == 200
    file = lab.project.checkpoint("train")
    assert file is not None
    kept = json.loads(file.read_text())
    for resource in kept["checkpoint"]["latest"]["resources"]:
        if resource["type"].endswith(":InstanceFromTemplate"):
            resource["inputs"]["metadata"] = resource["outputs"]["metadata"] = own
            resource["additionalSecretOutputs"] = COPIES_OF_LABELS
            for copy in COPIES_OF_LABELS:
                plaintext = json.dumps(resource["outputs"][copy])
                resource["outputs"][copy] = {**SECRET, "plaintext": plaintext}
        for node in resource.get("outputs", {}).get("fleet", {}).get("nodes", ()):
            del node["machine"]
    file.write_text(json.dumps(kept))


def test_a_node_that_ended_itself_is_no_change_and_a_pass_deletes_what_is_left_of_it(
    lab: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fleet("0..4", placement="any")
    lab.up(asked)
    operations.up(lab.project, FleetRequest(asked, lab.folder, count=3), quiet)
    paths = {
        each["labels"]["orch-urn"].rpartition("__")[2]: path for path, each in lab.cloud.instances().items()
    }

    # One that somebody stopped is there, and one that somebody deleted is made again.
    lab.cloud.request("POST", f"{paths['train-1']}/stop")
    lab.cloud.request("DELETE", paths["train-2"])
    assert pending(lab.preview(asked)) == [("create", "train-2")]
    lab.up(asked)

    # One that shut down by itself is neither a change nor drift.
    lab.cloud.shut_down(paths["train-0"])
    plan = operations.preview(lab.project, FleetRequest(asked, lab.folder), quiet)
    assert (plan.pending, plan.drift, plan.lost_nodes, plan.unrecorded) == (False, (), frozenset(), True)
    assert "train-0 ended itself" in plan.reasons[-1]
    assert "train-0" not in {each.name for each in lab.drift()}

    # Somebody starts it while a pass looks.
    looks: list[frozenset[str]] = [frozenset(), ended_nodes(StackState(lab.project, "train"))]
    assert looks[1] == {"train-0"}
    with monkeypatch.context() as started:
        started.setattr("orch.stacks.runs.sweep.ended_nodes", lambda stack: looks.pop())
        assert sweep(lab.project, quiet) == ()
    assert set(ids(lab)) == {"train-0", "train-1", "train-2"}

    # It is stopped, and its disk costs: a pass deletes both, and keeps the one that a person stopped.
    (swept,) = sweep(lab.project, quiet)
    assert (swept.fleet, swept.error) == ("train", None)
    assert set(ids(lab)) == {"train-1", "train-2"}
    assert len(lab.cloud.things("disk")) == 2
    assert (pending(lab.preview(asked)), sweep(lab.project, quiet)) == ([], ())
    lab.down()
    assert lab.cloud.everything() == {}
