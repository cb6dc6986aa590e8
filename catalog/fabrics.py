"""What a job's container needs to use an interconnect: variables, devices, capabilities, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from orch.catalog.errors import BadCatalogFile
from orch.catalog.load import SHIPPED

Texts = tuple[str, ...]


@dataclass(frozen=True)
class Fabric:
    """One interconnect as jobs see it. `optional_devices` are passed in only where they exist.

    `ulimits` are soft and hard limits alike, -1 for none. A task's own `env` wins over this one.
    `transports`: what NCCL uses where the fabric works, by the names of runner/verify/job/nccl_log.py; none
    where that cannot be said.
    """

    name: str
    title: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    devices: Texts = ()
    optional_devices: Texts = ()
    mounts: Texts = ()
    capabilities: Texts = ()
    ulimits: Mapping[str, int] = field(default_factory=dict[str, int])
    sources: Texts = ()
    transports: Texts = ()

    def words(self) -> tuple[str, ...]:
        """Return what a plan says about jobs on the fabric, one line each."""
        lines: list[str] = []
        if self.env:
            lines.append("jobs get " + " ".join(f"{key}={value}" for key, value in self.env.items()))
        devices = [*self.devices, *(f"{device} where there is one" for device in self.optional_devices)]
        limits = [f"{key} {'unlimited' if value < 0 else value}" for key, value in self.ulimits.items()]
        parts = [*devices, *self.mounts, *self.capabilities, *limits]
        return (*lines, "job containers get " + ", ".join(parts)) if parts else tuple(lines)


@dataclass(frozen=True)
class _Entry:
    types: Texts
    data: Mapping[str, Any]


def fabric(name: str, instance_type: str | None = None) -> Fabric | None:
    """The fabric `name` on a machine type; None for one that needs nothing known here.

    Raises BadCatalogFile.
    """
    known = _read(SHIPPED / "fabrics.yml").get(name)
    if known is None:
        return None
    title, transports, entries = known
    env: dict[str, str] = {}
    ulimits: dict[str, int] = {}
    lists: dict[str, list[str]] = {
        key: [] for key in ("devices", "optional_devices", "mounts", "capabilities")
    }
    sources: list[str] = []
    for entry in entries:
        if entry.types and not any(fnmatchcase(instance_type or "", pattern) for pattern in entry.types):
            continue
        env |= entry.data.get("env", {})
        ulimits |= entry.data.get("ulimits", {})
        for key, rows in lists.items():
            rows += [item for item in entry.data.get(key, ()) if item not in rows]
        sources.append(str(entry.data["source"]))
    return Fabric(
        name=name,
        title=title,
        env=env,
        devices=tuple(lists["devices"]),
        optional_devices=tuple(lists["optional_devices"]),
        mounts=tuple(lists["mounts"]),
        capabilities=tuple(lists["capabilities"]),
        ulimits=ulimits,
        sources=tuple(sources),
        transports=transports,
    )


def fabrics() -> tuple[str, ...]:
    """Names of all. Raises BadCatalogFile."""
    return tuple(_read(SHIPPED / "fabrics.yml"))


@cache
def _read(path: Path) -> dict[str, tuple[str, Texts, tuple[_Entry, ...]]]:
    try:
        data = cast("dict[str, Any]", yaml.load(path.read_text("utf-8"), yaml.CSafeLoader))
        return {
            name: (
                str(value["title"]),
                tuple(map(str, value["transports"])),
                tuple(_Entry(tuple(each.get("types", ())), _checked(each)) for each in value["entries"]),
            )
            for name, value in data["fabrics"].items()
        }
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise BadCatalogFile(
            "a file of the catalogue does not read",
            where=str(path),
            detail=f"{type(error).__name__}: {error}",
            hint="install orch again",
        ) from error


_KEYS = {"source", "types", "env", "devices", "optional_devices", "mounts", "capabilities", "ulimits"}


def _checked(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    if unknown := set(entry) - _KEYS:
        raise KeyError(f"unknown {', '.join(sorted(unknown))}")
    return entry
