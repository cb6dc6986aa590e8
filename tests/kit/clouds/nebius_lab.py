"""A simulated Nebius account, reached over the wire by Nebius's own SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orch.components.nebius.account.client import Begun, NebiusClient
from orch.components.nebius.account.methods import GPU_CLUSTER, INSTANCE
from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.nebius.service import NebiusService, sdk_of

REGION = "eu-north1"
PROJECT = f"project-e00{REGION}"
SUBNET = f"vpcsubnet-e00{REGION}"
H100 = {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"}
BOOT = {
    "attach_mode": "READ_WRITE",
    "managed_disk": {
        "name": "boot",
        "spec": {
            "type": "NETWORK_SSD",
            "size_gibibytes": "100",
            "source_image_family": {"image_family": "ubuntu24.04-cuda13.0"},
        },
    },
}


@dataclass(frozen=True)
class LoggedIn:
    sdk: Any
    projects: tuple[str, ...] = ()
    key: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class Lab:
    """An account, the service that it is behind, and a client of it."""

    cloud: NebiusCloud
    client: NebiusClient
    address: str

    def cluster(self, fabric: str = "fabric-2", name: str = "c") -> str:
        begun = self.client.create(
            GPU_CLUSTER, {"parent_id": PROJECT, "name": name}, {"infiniband_fabric": fabric}, f"key-{name}"
        )
        self.client.wait(begun, for_s=60, pause_s=0.01)
        return begun.resource

    def instance(self, name: str = "n", key: str | None = None, **spec: Any) -> Begun:
        return self.client.create(
            INSTANCE, {"parent_id": PROJECT, "name": name}, instance(name, **spec), key or f"key-{name}"
        )


def instance(name: str = "n", **spec: Any) -> dict[str, Any]:
    nic = {"subnet_id": SUBNET, "name": "eth0", "ip_address": {}}
    boot = {**BOOT, "managed_disk": {**BOOT["managed_disk"], "name": f"{name}-boot"}}  # type: ignore[dict-item]
    plain = {"resources": H100, "network_interfaces": [nic], "boot_disk": boot, "hostname": f"{name}-0"}
    return {key: value for key, value in {**plain, **spec}.items() if value is not None}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    cloud = NebiusCloud.create(tmp_path / "nebius.db")
    service = NebiusService(cloud)
    sdk = sdk_of(cloud, service.address)
    yield Lab(cloud, NebiusClient(LoggedIn(sdk)), service.address)
    sdk.sync_close()
    service.stop()
