"""Which fabric a node has, by what it tells; rows of `catalog/kubernetes_fabrics.yml`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache
from typing import Any, Literal, cast

import yaml

from orch.catalog.errors import BadCatalogFile
from orch.catalog.load import SHIPPED
from orch.components.kubernetes.account.facts import ClusterNode

SHARED = "rdma-shared"
"""What a resource is taken for that the catalogue does not know: a slot, of which a pod asks for one."""


@dataclass(frozen=True)
class PodFabric:
    """A row of the catalogue."""

    id: str
    title: str
    interconnect: str
    count: Literal["devices", "slots", "each", "none"]
    resources: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    apis: tuple[str, ...] = ()
    requests: Mapping[str, str] = field(default_factory=dict[str, str])
    privileges: tuple[str, ...] = ()
    per_type: Mapping[str, int] = field(default_factory=dict[str, int])
    whole: bool = False
    attached: bool = False
    source: str = ""

    def key_on(self, allocatable: Mapping[str, Fraction]) -> str | None:
        """The key of a node's that is this fabric; None where it has none of it."""
        return next(iter(self.keys_on(allocatable)), None)

    def keys_on(self, allocatable: Mapping[str, Fraction]) -> tuple[str, ...]:
        """All keys of a node's that are this fabric; addresses of networks are none."""
        return tuple(
            key
            for key in sorted(allocatable)
            if allocatable[key] > 0 and not key.endswith(".IP") and self.knows(key)
        )

    def knows(self, resource: str) -> bool:
        return any(fnmatchcase(resource, pattern) for pattern in self.resources)


@dataclass(frozen=True)
class NodeFabric:
    """The fabric of a node; `resource`: the key that tells it, None where a label does."""

    row: PodFabric
    resource: str | None

    def asked(self, node: Mapping[str, Fraction], share: Fraction) -> dict[str, str]:
        """What a pod with this share of a node asks for, to have as much of the fabric: by resource."""
        if self.resource is None or self.row.count == "none" or (self.row.whole and share < 1):
            return {}
        if self.row.count == "each":
            return dict.fromkeys(self.row.keys_on(node), "1")
        number = int(node.get(self.resource, Fraction(0)) * share) if self.row.count == "devices" else 1
        return {self.resource: str(number)} if number else {}


def fabric_of(node: ClusterNode, apis: frozenset[str], named: str | None) -> NodeFabric | None:
    """The fabric of a node. `apis`: groups of the cluster; `named`: the resource that orch.yml says it is."""
    if named is not None:
        if node.allocatable.get(named, 0) <= 0:
            return None
        row = next((each for each in rows().values() if each.knows(named)), None)
        return NodeFabric(row or rows()[SHARED], named)
    for row in rows().values():
        here = node.labels
        fits = all(key in here and fnmatchcase(here[key], value) for key, value in row.labels.items())
        key = row.key_on(node.allocatable)
        if fits and apis.issuperset(row.apis) and (key is not None or not row.resources):
            return NodeFabric(row, key)
    return None


def rows() -> Mapping[str, PodFabric]:
    """All by id, in the order in which they are tried. Raises BadCatalogFile."""
    return _read()[0]


def topology_sets() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Name and labels, the widest first, of each known way to tell where nodes stand."""
    return _read()[1]


_KEYS = frozenset(PodFabric.__dataclass_fields__) - {"id"}


@cache
def _read() -> tuple[Mapping[str, PodFabric], tuple[tuple[str, tuple[str, ...]], ...]]:
    path = SHIPPED / "kubernetes_fabrics.yml"
    try:
        data = cast("dict[str, Any]", yaml.load(path.read_text("utf-8"), yaml.CSafeLoader))
        fabrics = {str(name): _row(str(name), value) for name, value in data["fabrics"].items()}
        sets = tuple((str(each["name"]), tuple(map(str, each["labels"]))) for each in data["topologies"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise BadCatalogFile(
            "a file of the catalogue does not read",
            where=str(path),
            detail=f"{type(error).__name__}: {error}",
            hint="install orch again",
        ) from error
    return fabrics, sets


def _row(name: str, value: Mapping[str, Any]) -> PodFabric:
    if unknown := set(value) - _KEYS:
        raise KeyError(f"unknown {', '.join(sorted(unknown))}")
    lists = {key: tuple(map(str, value.get(key, ()))) for key in ("resources", "apis", "privileges")}
    return PodFabric(**{**value, "id": name, **lists})
