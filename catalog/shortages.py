"""Places that had no room: as an `up` found, or as a cloud told whose prices were fetched.

A line of a file each, which any number of processes add to. What is older than ten minutes says nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FILE = "no-room.jsonl"
COUNTS_S = 600
"""How long a shortage says something about a place."""
MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Shortage:
    """A type had no room at a place at a moment, in seconds since the epoch.

    `zone`: or what a backend has in its place, as a fabric; "" where there is none.
    """

    backend: str
    instance_type: str
    region: str
    zone: str
    spot: bool
    at: int


def recent(path: Path, now: float) -> tuple[Shortage, ...]:
    """The shortages that still count, one of each place: the last one."""
    last: dict[Shortage, Shortage] = {}
    for each in _read(path):
        if now - COUNTS_S <= each.at <= now:
            place = replace(each, at=0)
            last.pop(place, None)
            last[place] = each
    return tuple(last.values())


def add(path: Path, found: Collection[Shortage], now: float) -> None:
    """Add shortages. A file that cannot be written keeps nobody from anything."""
    if not found:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MOST_BYTES:
            _write(path, recent(path, now))
        with path.open("a", encoding="utf-8") as file:
            file.write(_lines(found))


def _lines(found: Collection[Shortage]) -> str:
    return "".join(f"{json.dumps(asdict(each), sort_keys=True)}\n" for each in found)


def _write(path: Path, found: Collection[Shortage]) -> None:
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    staged.write_text(_lines(found), "utf-8")
    staged.replace(path)


def _read(path: Path) -> list[Shortage]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found: list[Shortage] = []
    for line in lines:
        with suppress(ValueError, TypeError):  # cut short, or of another version
            found.append(Shortage(**json.loads(line)))
    return found
