"""A rehearsed fleet of spot nodes: runs make its nodes, which end themselves after them. It has a file
system, which keeps what runs save."""

from __future__ import annotations

from pathlib import Path

from kit.clouds.rehearsals import L4, Rehearsed, RehearsedGcp
from kit.nodes.stocked import stocked

from orch.rehearsal.scenario import NodeScenario

SHARED = "/shared/data"
"""Where nodes have the file system."""


def spot_fleet(path: Path, *, gcp: bool = False) -> tuple[Rehearsed, str]:
    """A project with the file `lab.yml`, and the instance type. Nodes have the small MPI image."""
    cloud, kind = (RehearsedGcp, L4) if gcp else (Rehearsed, "m7i.large")
    more = {"instance_types": [kind], "network": {"bastion": False, "interconnect": "ethernet"}}
    mounts = [{"type": "filestore" if gcp else "efs", "path": SHARED, "create": True}]
    there: Rehearsed = cloud.make(path, nodes=NodeScenario(image=stocked("mpi"), placeholders=False))
    there.fleet("0..4", name="lab", idle_duration="0s", spot_policy="spot", mounts=mounts, **more)
    return there, kind


def instance_of(there: Rehearsed, name: str) -> str:
    """The instance of a node. Machines of GCP have longer names, which end in the same number."""
    for instance, doc in there.cloud.instances().items():
        if instance.endswith(f"-{name[-1]}") or {"Key": "Name", "Value": name} in doc.get("Tags", ()):
            return instance
    raise AssertionError(f"there is no {name}")
