"""Filestore: what it takes and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

PROJECT = "projects/orch-rehearsal"
AT = "locations/us-central1-b/instances"


def make(bare: Any, name: str = "fs", size: int = 1024, network: str = "net") -> Any:
    body = {
        "tier": "ZONAL",
        "fileShares": [{"name": "share", "capacityGb": str(size)}],
        "networks": [{"network": network, "modes": ["MODE_IPV4"]}],
    }
    return bare.call("POST", AT, body, instanceId=name)


def grow(bare: Any, size: int) -> Any:
    body = {"fileShares": [{"name": "share", "capacityGb": str(size)}]}
    return bare.call("PATCH", f"{AT}/fs", body, updateMask="fileShares")


def test_an_instance_is_ready_when_its_operation_is_over(bare: Any, refused: Any) -> None:
    bare.network()
    bare.cloud.turn(clock=1000.0, pending_s=30)
    operation = make(bare)
    assert not operation["done"]
    assert bare.call("GET", f"{AT}/fs")["state"] == "CREATING"
    assert refused(grow, bare, 2048).code == "conditionNotMet"
    bare.cloud.turn(clock=1031.0)
    assert bare.call("GET", operation["name"].removeprefix(f"{PROJECT}/"))["done"]
    (listed,) = bare.call("GET", "locations/-/instances")["instances"]
    assert (listed["state"], len(listed["networks"][0]["ipAddresses"])) == ("READY", 1)
    assert refused(make, bare).code == "alreadyExists"


@pytest.mark.parametrize("size", [1000, 1100, 10_000, 11_000, 105_000])
def test_sizes_are_those_of_a_zonal_instance(bare: Any, refused: Any, size: int) -> None:
    bare.network()
    assert refused(make, bare, size=size).code == "invalid"


def test_an_instance_stays_in_its_range_and_under_the_quota(bare: Any, refused: Any) -> None:
    bare.network()
    bare.cloud.turn(quotas={"FILESTORE_ZONAL_GB": 3072})
    make(bare)
    grow(bare, 2048)
    assert refused(grow, bare, 4096).code == "quotaExceeded"
    bare.cloud.turn(quotas={})
    assert refused(grow, bare, 10_240).code == "invalid"


def test_a_network_with_an_instance_stays(bare: Any, refused: Any) -> None:
    assert refused(make, bare).code == "notFound"
    bare.network()
    make(bare)
    network = "global/networks/net"
    assert refused(bare.call, "DELETE", network).code == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    bare.call("DELETE", f"{AT}/fs")
    bare.call("DELETE", network)


def test_addresses_are_in_the_block_that_was_asked_for(bare: Any, refused: Any) -> None:
    bare.network()

    def within(block: str) -> Any:
        body = {
            "tier": "ZONAL",
            "fileShares": [{"name": "share", "capacityGb": "1024"}],
            "networks": [{"network": "net", "modes": ["MODE_IPV4"], "reservedIpRange": block}],
        }
        return bare.call("POST", AT, body, instanceId="fs")

    assert refused(within, "10.32.0.0/29").code == "invalid"
    within("10.32.4.0/26")
    (network,) = bare.call("GET", f"{AT}/fs")["networks"]
    assert (network["reservedIpRange"], network["ipAddresses"]) == ("10.32.4.0/26", ["10.32.4.2"])
