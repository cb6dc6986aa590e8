"""A simulated Lambda account, reached over the wire by orch's own client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch.components.lambda_.account.client import FILE_SYSTEM, SSH_KEY, LambdaClient
from orch.components.lambda_.account.login import Login
from orch.rehearsal.http_service import HttpService
from orch.rehearsal.lambda_.account import LambdaCloud

REGION = "us-east-1"
H100 = "gpu_8x_h100_sxm5"
QUICK = {"pause_s": 0.01, "call_every_s": 0.0, "launch_every_s": 0.0}


@dataclass
class Lab:
    """An account, where it is served, and a client of it."""

    cloud: LambdaCloud
    client: LambdaClient
    url: str

    def asked(self, action: str) -> int:
        return [call.action for call in self.cloud.calls].count(action)

    def key(self) -> str:
        self.client.create(SSH_KEY, {"name": "key", "public_key": "ssh-ed25519 AAAA"})
        return "key"

    def file_system(self, name: str = "data", region: str = REGION) -> str:
        return self.client.create(FILE_SYSTEM, {"name": name, "region": region})

    def instance(self, name: str, spec: dict[str, Any]) -> str:
        return self.client.launch({"name": name, **spec})


def spec(key: str, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "region_name": REGION,
        "instance_type_name": H100,
        "ssh_key_names": [key],
        "image": {"family": "lambda-stack-22-04"},
    }
    return {**plain, **more}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    cloud = LambdaCloud.create(tmp_path / "lambda.db")
    service = HttpService(cloud)
    url = f"{service.url}/api/v1"
    client = LambdaClient(Login(cloud.api_key, url), **QUICK)
    yield Lab(cloud, client, url)
    client.close()
    service.stop()
