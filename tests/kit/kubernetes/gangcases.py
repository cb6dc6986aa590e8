"""Gangs as tests ask for them, and those that are written down in tests/runner/kubernetes/gangs/golden."""

from __future__ import annotations

import json
from typing import Any

import yaml
from kit import TESTS
from kit.goldens import Goldens

from orch.runner.kubernetes.gangs.objects import gang
from orch.runner.kubernetes.gangs.request import Claim, GangRequest, HostFolder, PodResources, RegistryLogin
from orch.spec.state import PodQueue

GOLDEN = TESTS / "runner" / "kubernetes" / "gangs" / "golden"
CASES = sorted(path.stem for path in GOLDEN.glob("*.yml"))

H100: dict[str, Any] = {
    "namespace": "ml",
    "gang": "job",
    "pods": 8,
    "cpus": 64,
    "memory_mib": 512 * 1024,
    "gpus": {"count": 8, "vendor": "nvidia", "name": "H100", "memory_mib": 81920},
    "gpu_resource": "nvidia.com/gpu",
    "requests": {"cpu": "60", "memory": "480Gi", "nvidia.com/gpu": "8"},
}


def queue(**words: Any) -> PodQueue:
    """A queue of nodes with eight H100s each; `words` win."""
    return PodQueue.model_validate({**H100, **words})


def request(**words: Any) -> GangRequest:
    """A gang of two pods on such a queue; `words` win."""
    plain: dict[str, Any] = {
        "queue": queue(),
        "project": "0123456789ab",
        "fleet": "pool",
        "run": "train",
        "token": "7d0e1f6a",
        "attempt": 0,
        "pods": 2,
        "image": "nvcr.io/nvidia/pytorch:25.10-py3",
        "script": "exec sleep 600",
    }
    return GangRequest(**{**plain, **words})


def written(name: str) -> GangRequest:
    """The request of a file of golden/: `queue`, and beside it what differs from `request()`."""
    data: dict[str, Any] = yaml.safe_load((GOLDEN / f"{name}.yml").read_text("utf-8"))
    words = dict(data.get("request", {}))
    if "resources" in words:
        words["resources"] = PodResources(**words["resources"])
    if "registry" in words:
        words["registry"] = RegistryLogin(**words["registry"])
    if "mounts" in words:
        words["mounts"] = tuple(
            Claim(**each) if "name" in each else HostFolder(**each) for each in words["mounts"]
        )
    for key in ("tolerations", "regions", "zones", "instance_types"):
        if key in words:
            words[key] = tuple(words[key])
    return request(queue=queue(**data["queue"]), **words)


def manifests(name: str) -> list[dict[str, Any]]:
    """The manifests of a file of golden/, as JSON has them."""
    return json.loads(json.dumps(gang(written(name))))


GOLDENS = Goldens(GOLDEN / "manifests.json", lambda: {name: manifests(name) for name in CASES})
answers = GOLDENS.outcome
