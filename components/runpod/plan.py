"""What a planned RunPod fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orch.catalog.fabrics import Fabric
from orch.components.cloud import marked
from orch.components.cloud.plan import Node
from orch.components.node_count import folded, unfolded
from orch.components.volumes import STACK as VOLUME_STACK
from orch.spec.findings import Finding

GROUP_PIN = "pods:"
"""What pins of a group begin with; its number follows."""

MOST_PODS = 8
"""Of an Instant Cluster. Source: runpod/docs instant-clusters.mdx; more are for sales to give."""

HIDDEN = ("RUNPOD_API_KEY",)
"""Variables of a pod that its job does not get: RunPod puts a key of the pod's own there."""


@dataclass(frozen=True)
class PodGroup:
    """Pods that are made by one call, for one run, and go with it: one pod, or an Instant Cluster.

    `made_for`: the mark of the run's making; `indices`: of its nodes, in order of ranks. `spec`: the body of
    the create call, without what no plan may show. `price`: US dollars an hour of one node. Recorded as it
    is: nothing of a pod changes, whatever becomes of the file, the catalogue and orch.
    """

    number: int
    indices: tuple[int, ...]
    made_for: str
    spec: Mapping[str, Any]
    instance_type: str
    center: str
    price: float | None
    cpus: int | None
    memory_mib: int | None
    disk_gb: int
    gpus: Mapping[str, str | int | None]

    @property
    def cluster(self) -> bool:
        return len(self.indices) > 1

    @property
    def image(self) -> str:
        return str(self.spec["image"])

    def name(self, fleet: str) -> str:
        """Of its resource, and how its name in the account begins. No two makings share one."""
        return f"{fleet}-{self.number}-{self.made_for[:6]}"

    def nodes(self, fleet: str) -> tuple[Node, ...]:
        return tuple(Node(index, f"{fleet}-{index}") for index in self.indices)

    @property
    def pin(self) -> str:
        return json.dumps({**asdict(self), "indices": folded(self.indices)}, sort_keys=True)

    @classmethod
    def recorded(cls, text: str) -> PodGroup:
        data: dict[str, Any] = json.loads(text)
        data["indices"] = unfolded(data["indices"])
        return cls(**data)


_CLOUD_NAME = re.compile(
    r"(?P<fleet>.+)-\d+-[0-9a-f]{6}-(?P<scope>[0-9a-f]{6})-(?P<digest>[0-9a-f]{8})-[0-9a-f]{6}"
)
"""The name of a group in the account: that of its resource, its stack's scope, and two digests."""

_VOLUME_NAME = re.compile(r"(?P<volume>.+)-(?P<scope>[0-9a-f]{6})-(?P<digest>[0-9a-f]{8})")
"""The name of a network volume in the account: its own, its stack's scope, and a digest of both."""


def cloud_name(name: str, mark: str, spec: Mapping[str, Any] | None = None) -> str:
    """The name in the cloud of what has a stack's mark. With `spec`: what was asked for otherwise has another
    name, and is not taken over."""
    return marked.cloud_name(f"{name}-{mark.rpartition('/')[2]}", mark, spec)


def is_ours(name: str) -> bool:
    """Whether the name of a pod or a cluster in the account is one that orch gives."""
    return _CLOUD_NAME.fullmatch(name) is not None


def mark_of(name: str, project: str) -> str | None:
    """The mark that the name of a pod or a cluster bears, of whatever stack of a project; None where it is
    another project's, or none of orch's. A fleet's stack has its name."""
    found = _CLOUD_NAME.fullmatch(name)
    if found is None:
        return None
    mark = f"{project}/{found['fleet']}/{found['scope']}"
    return mark if marked.stack_digest(mark) == found["digest"] else None


def volume_mark_of(name: str, project: str) -> str | None:
    """The mark that the name of a network volume bears, of whatever stack of a project; None where it is
    another's."""
    found = _VOLUME_NAME.fullmatch(name)
    if found is None:
        return None
    mark = f"{project}/{VOLUME_STACK}{found['volume']}/{found['scope']}"
    return mark if marked.stack_digest(mark) == found["digest"] else None


@dataclass(frozen=True, kw_only=True)
class RunpodPlan:
    """A fleet on RunPod: what runs have of it now, and what the next one gets.

    `new`: whether the last of `groups` is to be made. `instance_type`, `center`, `price`: where the next
    run's pods go. `authorized_keys`: who may log in beside the fleet's own key.
    """

    fleet: str
    scope: str
    placement: str
    interconnect: str
    fabric: Fabric | None
    groups: tuple[PodGroup, ...]
    new: bool
    instance_type: str
    center: str
    price: float | None
    gpus: Mapping[str, str | int | None]
    cpus: int | None
    memory_mib: int | None
    disk_gb: int
    job_image: str | None
    env: Mapping[str, str]
    authorized_keys: tuple[str, ...]
    protect: bool
    hourly: float
    unpriced: tuple[str, ...]
    pins: Mapping[str, str]
    reasons: tuple[str, ...]
    warnings: tuple[Finding, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of all groups, in order of their index."""
        nodes = (node for group in self.groups for node in group.nodes(self.fleet))
        return tuple(sorted(nodes, key=lambda node: node.index))

    @property
    def makers(self) -> dict[str, str]:
        """The resource that makes each node."""
        return {
            node.name: group.name(self.fleet) for group in self.groups for node in group.nodes(self.fleet)
        }
