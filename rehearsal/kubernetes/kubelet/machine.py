"""What all pods of a rehearsed cluster share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.rehearsal.kubernetes.api import Api, Doc

LABEL = "orch.kubernetes"
"""The label of all containers and volumes of a cluster; its value is the cluster's name."""


@dataclass(frozen=True)
class Machine:
    """What all pods of a cluster share. `sandbox`: the image of the container that holds a pod's network."""

    api: Api
    docker: Any
    cluster: str
    network: str
    sandbox: str
    folder: Path

    def lookup(self, pod: Doc, plural: str, name: str) -> Doc | None:
        """A document of a pod's namespace; None where there is none."""
        return self.api.find(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{plural}/{name}")
