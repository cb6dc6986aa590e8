"""The facts about a Newcloud account that a plan needs: frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Machine:
    """A machine as Newcloud shows it. Addresses are empty at first. `created`: ISO 8601, or empty
    if Newcloud does not show it."""

    id: str
    name: str
    type: str
    region: str
    status: Literal["starting", "running", "failed", "gone"]
    address: str = ""
    public_address: str = ""
    created: str = ""


@dataclass(frozen=True)
class TypeStock:
    """A type as Newcloud sells it now. `regions`: those with capacity."""

    disk_gib: int
    regions: frozenset[str]


Stock = Mapping[str, TypeStock]
"""By type."""


@dataclass(frozen=True)
class Image:
    """A machine image."""

    id: str
    name: str


@dataclass(frozen=True)
class NewcloudFacts:
    """The facts for a plan at one place. `room`: whether it has capacity now, None if it was not asked."""

    image: Image | None = None
    disk_gib: int = 0
    room: bool | None = None
