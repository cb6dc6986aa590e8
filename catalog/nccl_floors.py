"""Bus bandwidth that a verification must find: a part of what healthy nodes of the same type have reached."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from orch.catalog.errors import BadCatalogFile
from orch.catalog.load import SHIPPED, read_rows

KEPT = 0.85
"""The part of an anchor that is asked for: runs of one healthy cluster differ by some percent."""


@dataclass(frozen=True)
class Anchor:
    """Bandwidth that nodes of a type have reached. `instance_type` may end in `*`; `busbw`: GB/s, of
    nccl-tests."""

    instance_type: str
    nodes: int
    collective: str
    size_bytes: int
    busbw: float
    source: str

    @property
    def floor(self) -> float:
        """GB/s that are asked for."""
        return KEPT * self.busbw


def anchor(instance_type: str, nodes: int, collective: str, size_bytes: int) -> Anchor | None:
    """The anchor of exactly this type, number of nodes, collective and size; None where none was published.

    None is derived from another number of nodes or size. Raises BadCatalogFile."""
    for each in anchors(SHIPPED / "nccl_floors.csv"):
        asked = (each.nodes, each.collective, each.size_bytes)
        if asked == (nodes, collective, size_bytes) and fnmatchcase(instance_type, each.instance_type):
            return each
    return None


@cache
def anchors(path: Path) -> tuple[Anchor, ...]:
    """Return all anchors of a file. Raises BadCatalogFile."""
    try:
        return tuple(
            Anchor(
                row["instance_type"],
                int(row["nodes"]),
                row["collective"],
                int(row["size_bytes"]),
                float(row["busbw"]),
                row["source"],
            )
            for row in read_rows(path)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadCatalogFile(
            "a file of the catalogue does not read",
            where=str(path),
            detail=f"{type(error).__name__}: {error}",
            hint="install orch again",
        ) from error
