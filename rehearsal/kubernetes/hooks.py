"""The cluster of a rehearsal: a real control plane on this machine, in the place of the user's clusters."""

from __future__ import annotations

from pathlib import Path

import yaml

from orch.rehearsal.kubernetes.programs import ControlPlaneMissing, find
from orch.rehearsal.kubernetes.service import RehearsedCluster

NODES = 4
NODE = {
    "capacity": {"nvidia.com/gpu": "8", "rdma/ib": "63", "cpu": "64", "memory": "512Gi"},
    "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "topology.kubernetes.io/zone": "zone-a"},
}
"""What nodes of a cluster are that the rehearsal has no `cluster.yml` for; their GPUs are numbers."""


def session(folder: Path) -> str:
    """The path of the kubeconfig of a rehearsal's cluster, which is started where it does not run.

    Raises ControlPlaneMissing where its programs are not installed, ControlPlaneFailed.
    """
    if find() is None:
        raise ControlPlaneMissing(
            "a rehearsal on Kubernetes needs a control plane on this machine, and its programs are not here",
            hint=f"`python -m orch.rehearsal.kubernetes {folder}` downloads them, or builds them in 10 to 25 "
            "minutes, once",
        )
    if not (folder / "cluster.yml").exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        nodes = [{"name": f"node-{index}", **NODE} for index in range(NODES)]
        (folder / "cluster.yml").write_text(yaml.safe_dump({"nodes": nodes, "install": ["kueue"]}), "utf-8")
    cluster = RehearsedCluster(folder)
    cluster.use()
    return str(cluster.kubeconfig.absolute())


def forget(folder: Path) -> None:
    """End the cluster, with all that runs on it."""
    if folder.exists():
        RehearsedCluster(folder).stop()
