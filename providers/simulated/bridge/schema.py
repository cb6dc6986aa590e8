"""The property tables of the resource types, read once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True)
class Schema:
    """Properties of one type; see resources.yml for the words."""

    token: str
    inputs: frozenset[str]
    required: frozenset[str]
    outputs: frozenset[str]
    new: tuple[str, ...] = ()
    computed: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    json: frozenset[str] = frozenset()
    stale: frozenset[str] = frozenset()
    name: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def regional(self) -> bool:
        return "region" in self.inputs

    @property
    def tagged(self) -> bool:
        return "tagsAll" in self.outputs

    def replaces(self, path: str) -> bool:
        """Whether a change at this path (without indexes) needs another resource."""
        return any(path == new or path.startswith(f"{new}.") for new in self.new) or path == "region"


@functools.cache
def schemas() -> Mapping[str, Schema]:
    text = (resources.files("orch.providers.simulated.bridge") / "resources.yml").read_text()
    return {token: _schema(token, row) for token, row in yaml.safe_load(text).items()}


def _schema(token: str, row: Mapping[str, Any]) -> Schema:
    names = str(row["inputs"]).split()

    def words(key: str) -> list[str]:
        return str(row.get(key, "")).split()

    return Schema(
        token=token,
        inputs=frozenset(name.rstrip("*") for name in names),
        required=frozenset(name.rstrip("*") for name in names if name.endswith("*")),
        outputs=frozenset(words("outputs")),
        new=tuple(words("new")),
        computed=frozenset(words("computed")),
        sets=frozenset(words("sets")),
        json=frozenset(words("json")),
        stale=frozenset(words("stale")),
        name=row.get("name"),
        defaults=row.get("defaults") or {},
    )
