"""A simulated RunPod account, reached over the wire by orch's own client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch.components.runpod.account.client import CLUSTER, POD, VOLUME, Login, RunpodClient
from orch.rehearsal.http_service import HttpService
from orch.rehearsal.runpod.account import RunpodCloud

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"


@dataclass
class Lab:
    """An account, where it is served, and a client of it."""

    cloud: RunpodCloud
    client: RunpodClient
    url: str

    def pod(self, name: str = "p", **more: Any) -> str:
        return self.client.create(POD, {"name": name, **pod(**more)})

    def cluster(self, name: str = "c", count: int = 2, **more: Any) -> str:
        return self.client.create(CLUSTER, {"name": name, **cluster(count, **more)})

    def volume(self, name: str = "v", center: str = "US-TX-3", size: int = 100) -> str:
        return self.client.create(VOLUME, {"name": name, "dataCenter": center, "size": size})

    def asked(self, action: str) -> int:
        return [call.action for call in self.cloud.calls].count(action)


def pod(**more: Any) -> dict[str, Any]:
    plain = {"image": IMAGE, "gpu": {"id": A100, "count": 1}, "ports": ["22/tcp"], "disk": 20}
    return {key: value for key, value in {**plain, **more}.items() if value is not None}


def cluster(count: int = 2, gpu: str = A100, **more: Any) -> dict[str, Any]:
    compute = {"gpuTypeId": gpu, "gpuCountPerPod": 8, "podCount": count}
    plain = {"type": "TRAINING", "image": IMAGE, "ports": ["22/tcp"], "disk": 20, "compute": compute}
    return {key: value for key, value in {**plain, **more}.items() if value is not None}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    cloud = RunpodCloud.create(tmp_path / "runpod.db")
    service = HttpService(cloud)
    client = RunpodClient(Login(cloud.api_key, service.url), pause_s=0.01)
    yield Lab(cloud, client, service.url)
    client.close()
    service.stop()
