"""The property tables of a cloud's resource types, read once."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True)
class Schema:
    """Properties of one type; see a cloud's resources.yml for the words."""

    token: str
    inputs: frozenset[str]
    required: frozenset[str]
    outputs: frozenset[str]
    new: tuple[str, ...] = ()
    computed: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    json: frozenset[str] = frozenset()
    stale: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    strict: frozenset[str] = frozenset()
    falls: frozenset[str] = frozenset()
    name: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    maps: frozenset[str] = frozenset()
    """Properties whose keys are the user's: a key too many is a difference."""
    places: frozenset[str] = frozenset()
    """Where it is; the provider's own setting where it is not given."""

    def replaces(self, path: str) -> bool:
        """Whether a change at this path (without indexes) needs another resource."""
        return path in self.places or any(path == new or path.startswith(f"{new}.") for new in self.new)

    def shrinks(self, path: str, old: Any, new: Any) -> bool:
        """Whether it is a number that needs another resource because it falls."""
        numbers = isinstance(old, (int, float)) and isinstance(new, (int, float))
        return path in self.falls and numbers and new < old


@functools.cache
def load(package: str, maps: frozenset[str], places: frozenset[str]) -> Mapping[str, Schema]:
    """The table `resources.yml` of a package. `maps` and `places` mean the same in all its types."""
    text = (resources.files(package) / "resources.yml").read_text()
    return {token: _schema(token, row, maps, places) for token, row in yaml.safe_load(text).items()}


def _schema(token: str, row: Mapping[str, Any], maps: Iterable[str], places: frozenset[str]) -> Schema:
    names = str(row["inputs"]).split()

    def words(key: str) -> list[str]:
        return str(row.get(key, "")).split()

    inputs = frozenset(name.rstrip("*") for name in names)
    return Schema(
        token=token,
        inputs=inputs,
        required=frozenset(name.rstrip("*") for name in names if name.endswith("*")),
        outputs=frozenset(words("outputs")),
        new=tuple(words("new")),
        computed=frozenset(words("computed")),
        sets=frozenset(words("sets")),
        json=frozenset(words("json")),
        stale=frozenset(words("stale")),
        links=frozenset(words("links")),
        strict=frozenset(words("strict")),
        falls=frozenset(words("falls")),
        name=row.get("name"),
        defaults=row.get("defaults") or {},
        maps=frozenset(maps),
        places=places & inputs,
    )
