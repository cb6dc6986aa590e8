"""One rehearsed cluster for all tests of a process: eight nodes of eight GPUs, JobSet and Kueue installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kit.kubernetes.kubelab import Cluster

from orch.rehearsal.kubernetes.service import RehearsedCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    nodes = [
        {
            "name": f"gpu-{index}",
            "capacity": {"nvidia.com/gpu": "8", "rdma/ib": "63", "cpu": "64", "memory": "512Gi"},
            "labels": {
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "topology.kubernetes.io/block": f"block-{index // 4}",
            },
        }
        for index in range(8)
    ]
    settings = {"nodes": nodes, "gangs": True, "install": ["jobset", "kueue"]}
    (folder / "cluster.yml").write_text(yaml.safe_dump(settings))
    rehearsed = RehearsedCluster(folder)
    rehearsed.start()
    try:
        yield Cluster(rehearsed)
    finally:
        rehearsed.stop()


@pytest.fixture(autouse=True)
def nodes_are_free(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves no pods in the namespaces that it has made: the next one needs all nodes."""
    if "cluster" not in request.fixturenames:
        yield
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    before = len(cluster.spaces)
    yield
    for space in cluster.spaces[before:]:
        cluster.empty(space)
    del cluster.spaces[before:]
