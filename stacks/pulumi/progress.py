"""Progress of an operation, as its listener gets it: steps of resources, notes, activities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStep:
    """Progress of one resource: `phase` is "start", "done" or "failed"."""

    phase: str
    op: str
    type: str
    name: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Note:
    """An event that is no resource: a lock broken, an image built.

    `lasts`: it describes what goes on from then, as the place that is tried.
    """

    text: str
    lasts: bool = False


@dataclass(frozen=True)
class Left(Note):
    """Note on a resource that a recovery found unrecorded, and did not delete."""


@dataclass(frozen=True)
class Activity:
    """The current activity, beside resources; shown only where it takes long."""

    text: str


@dataclass(frozen=True)
class ExpectedNodes:
    """Names of the node resources that will be created or removed; progress counts these."""

    names: frozenset[str]


Progress = EngineStep | Note | Activity | ExpectedNodes
Listener = Callable[[Progress], None]
