"""What was asked of a Lambda account before a plan is made: frozen, and small enough to write down in a test.

`client.py` asks; the simulated account answers the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orch.components.cloud.rest.client import Row


@dataclass(frozen=True)
class TypeStock:
    """A type as Lambda tells of it now. `cents`: US cents an hour; `regions`: those with capacity, not how
    much."""

    cents: int
    storage_gib: int
    regions: frozenset[str]


Stock = Mapping[str, TypeStock]
"""By type."""


@dataclass(frozen=True)
class Image:
    """A machine image of one region."""

    id: str
    family: str
    version: str

    @property
    def words(self) -> str:
        return f"{self.family} {self.version}".strip()


@dataclass(frozen=True)
class FoundFileSystem:
    """A file system that is there."""

    id: str
    name: str
    region: str


@dataclass(frozen=True)
class Lookups:
    """All that a plan for one candidate has to ask. `image`: an id, or a family; `arch`: of the type."""

    instance_type: str
    region: str
    image: str
    arch: str
    file_systems: Sequence[str]


@dataclass(frozen=True)
class LambdaFacts:
    """The answers. `file_systems`: by what the file calls them, without those that are not there.

    `ssh_from`: the networks that the account's own rules let in to SSH; those of fleets go with their fleet.
    `room`: whether the place has capacity now, None: it was not asked.
    """

    image: Image | None = None
    storage_gib: int | None = None
    file_systems: Mapping[str, FoundFileSystem] = field(default_factory=dict[str, FoundFileSystem])
    ssh_from: tuple[str, ...] = ()
    room: bool | None = None


def image_of(rows: Sequence[Row], lookups: Lookups) -> Image | None:
    """The image of this id, or the newest of this family or one of its versions (`lambda-stack` of
    `lambda-stack-22-04`), in the region and for the type's processors."""
    arch = "arm64" if lookups.arch == "arm" else "x86_64"
    here = [row for row in rows if row["region"]["name"] == lookups.region and row["architecture"] == arch]
    named = lookups.image
    found = [
        row for row in here if named in (row["id"], row["family"]) or row["family"].startswith(f"{named}-")
    ]
    newest = max(found, key=lambda row: (str(row.get("created_time", "")), str(row["family"])), default=None)
    if newest is None:
        return None
    return Image(str(newest["id"]), str(newest["family"]), str(newest["version"]))
