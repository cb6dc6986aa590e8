"""A simulated Crusoe project, reached over the wire by orch's own client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch.components.crusoe.account.client import INSTANCE, NETWORK, PARTITION, SUBNET, CrusoeClient
from orch.components.crusoe.account.login import Login
from orch.rehearsal.crusoe.account import CrusoeCloud
from orch.rehearsal.http_service import HttpService

LOCATION = "us-east1-a"
H200 = "h200-141gb-sxm-ib.8x"
IB = "ibn-h200-us-east1-1"
IMAGE = "ubuntu22.04-nvidia-sxm-docker:latest"


@dataclass
class Lab:
    """A project, where it is served, and a client of it."""

    cloud: CrusoeCloud
    client: CrusoeClient
    url: str

    def asked(self, action: str) -> int:
        return [call.action for call in self.cloud.calls].count(action)

    def subnet(self) -> str:
        network, operation = self.client.create(NETWORK, {"name": "net", "cidr": "10.0.0.0/16"})
        self.client.settle(NETWORK, operation, "make the network", for_s=30)
        body = {"name": "sub", "cidr": "10.0.0.0/16", "location": LOCATION, "vpc_network_id": network}
        return self.client.create(SUBNET, body)[0]

    def partition(self, network: str = IB) -> str:
        return self.client.create(PARTITION, {"name": "part", "ib_network_id": network})[0]

    def instance(self, name: str, spec: dict[str, Any]) -> str:
        body = {"name": name, "ssh_public_key": "ssh-ed25519 AAAA", **spec}
        return self.client.create(INSTANCE, body)[0]


def spec(subnet: str, partition: str | None, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "type": H200,
        "location": LOCATION,
        "image": IMAGE,
        "network_interfaces": [{"subnet": subnet, "ips": [{"public_ipv4": {"type": "dynamic"}}]}],
        "host_channel_adapters": [{"ib_partition_id": partition}] if partition else [],
    }
    return {**plain, **more}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    cloud = CrusoeCloud.create(tmp_path / "crusoe.db")
    service = HttpService(cloud)
    url = f"{service.url}/v1"
    client = CrusoeClient(Login(cloud.access_key, cloud.secret_key, cloud.project, url), pause_s=0.01)
    yield Lab(cloud, client, url)
    client.close()
    service.stop()
