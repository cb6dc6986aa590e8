"""Filestores that are created with GCP fleets, through the real engine on a simulated account."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.gcp_engine import Stack, stack

from orch.rehearsal.nodes.user_data import file_of
from orch.runner.preparation.mounts import CREATED, created_name
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet

pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture
def lab(tmp_path: Path) -> Stack:
    return stack(tmp_path / "project", "l4")


def fleet(*mounts: dict[str, Any], nodes: str = "1", **more: Any) -> Fleet:
    base = {"type": "fleet", "name": "l4", "backends": ["gcp"], "regions": ["us-central1"]}
    base |= {"instance_types": ["g2-standard-4"], "nodes": nodes, "mounts": list(mounts)}
    return Fleet.model_validate({**base, **more})


def filestore(**create: str) -> dict[str, Any]:
    return {"type": "filestore", "path": "/shared", "create": create or "true"}


def changed(changes: Any) -> list[tuple[str, str]]:
    return sorted((each.op, each.type.rpartition(":")[2]) for each in changes if each.op != "same")


@pytest.mark.timeout(600)
def test_a_filestore_comes_with_the_fleet_grows_and_goes_with_it(lab: Stack) -> None:
    wanted = fleet(filestore())
    lab.up(wanted)
    (made,) = lab.cloud.things("filestore-instance").values()
    block = ip_network(made["networks"][0]["reservedIpRange"])
    assert block.subnet_of(ip_network("10.32.0.0/13"))  # type: ignore[arg-type]
    (rule,) = [
        each for each in lab.cloud.things("firewall").values() if str(block) in each.get("sourceRanges", ())
    ]
    assert {each["IPProtocol"] for each in rule["allowed"]} == {"tcp", "udp"}
    assert made["fileShares"] == [{"name": "share", "capacityGb": "1024"}]
    for path in lab.cloud.instances():
        machine = lab.cloud.machine(path)
        if machine is not None and "bastion" not in path:
            told = file_of(machine.user_data, CREATED)
            address = made["networks"][0]["ipAddresses"][0]
            assert told == f"{created_name('/shared')} {address}:/share /shared\n".encode()
    assert changed(lab.plan(wanted).changes) == []
    assert lab.drift() == ()

    larger = fleet(filestore(size="2TB"), nodes="2")
    assert changed(lab.up(larger)) == [("create", "InstanceFromTemplate"), ("update", "Instance")]
    (grown,) = lab.cloud.things("filestore-instance").values()
    assert (grown["name"], grown["fileShares"][0]["capacityGb"]) == (made["name"], "2048")
    for size, code in (("1TB", "ORCH264"), ("10TB", "ORCH274")):
        with pytest.raises(PlanErrors) as caught:
            lab.plan(fleet(filestore(size=size)))
        assert [(each.code, each.path) for each in caught.value.findings] == [(code, "mounts[0].create.size")]

    lab.cloud.request("DELETE", made["name"])
    assert [each.name for each in lab.drift()]
    with pytest.raises(PlanErrors, match="is gone: a new one would be empty"):
        lab.up(larger)
    assert lab.cloud.things("filestore-instance") == {}
    lab.up(larger, lose_data=["/shared"])
    assert len(lab.cloud.things("filestore-instance")) == 1
    lab.down()
    assert lab.cloud.everything() == {}
