"""Which project a folder belongs to, decided from what lies in it and in the folders upwards."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from orch.spec.document.ways import ways_up
from orch.spec.suggest import counted, few
from orch.stacks.errors import ProjectError
from orch.stacks.project.trust import trusted_owners

COMPRESSED = (".gz", ".zst")
"""Suffixes of a state's file that the engine has compressed."""
MOVED = "the move of the state to "
"""How the owner of a lease begins that keeps stacks whose state has moved; the rest is its URL."""
HOLD = "state.hold"
"""The stack whose lease holds the whole state; see `states/holding.py`."""


class Reason(IntEnum):
    """Reason that a folder is the root of a project, the weakest first."""

    NOTHING = 0
    """It is the folder itself."""
    USED = 1
    """It is the folder itself, and commands have worked in it."""
    CHECKOUT = 2
    RECORDS = 3
    SETTINGS = 4


@dataclass(frozen=True)
class Place:
    """A folder, and what makes it the root of a project.

    `identity` is one for all names of the folder. `stacks`: those that its `.orch` records, None where this
    user may not look. `used`: its `.orch` is not of a rehearsal alone. `lends`: what it records also counts
    for folders below it.
    """

    path: str
    identity: object = None
    settings: bool = False
    checkout: bool = False
    used: bool = False
    stacks: tuple[str, ...] | None = ()
    lends: bool = True

    @property
    def records(self) -> bool:
        return self.stacks is None or bool(self.stacks)


@dataclass(frozen=True)
class Choice:
    """The root of a project."""

    place: Place
    reason: Reason


@dataclass(frozen=True)
class Claims:
    """Two folders that are the root with equal right: `inner` is the one that could be lost sight of."""

    inner: Place
    outer: Place


def choose(ways: Sequence[Sequence[Place]]) -> Choice | Claims:
    """The root of the project of a folder, from the places upwards by each way to it, the nearest first.

    By one way it is, each before the next:

    1. the nearest folder with an orch.yml;
    2. the nearest folder whose `.orch` records stacks, in the Git checkout if there is one. Without a
       checkout a folder in which commands have worked stays its own project, and what is recorded in the home
       folder, in `/`, in a folder that every user may write or by another user counts for nothing below it;
    3. the root of the Git checkout;
    4. the folder itself.

    A folder that records stacks is never taken over: where it lies below the orch.yml, or below the root of a
    checkout that records stacks too, both claim the folder.

    | upwards, the nearest first              | root                             |
    |-----------------------------------------|----------------------------------|
    | nothing; orch.yml                       | orch.yml                         |
    | orch.yml; .git with stacks; orch.yml    | the nearest orch.yml             |
    | .git; orch.yml                          | orch.yml                         |
    | stacks; orch.yml                        | both claim it                    |
    | nothing; stacks; .git; orch.yml         | both claim it                    |
    | a used .orch without stacks; orch.yml   | orch.yml                         |
    | a rehearsal alone; orch.yml             | orch.yml                         |
    | stacks; .git                            | stacks                           |
    | stacks; .git with stacks                | both claim it                    |
    | nothing; stacks; nothing                | stacks                           |
    | stacks; stacks; nothing                 | the nearest                      |
    | a used .orch; stacks; nothing           | the folder                       |
    | nothing; stacks in the home folder      | the folder                       |

    Several ways lead to a folder through a link. The best reason wins, then the first way. Where a way leads
    to another folder that records stacks, both claim it, unless that one has no orch.yml and counts for
    nothing below it.
    """
    choices: list[Choice] = []
    for way in ways:
        found = _by_one_way(way)
        if isinstance(found, Claims):
            return found
        choices.append(found)
    best = max(choices, key=lambda each: each.reason)
    for other in choices:
        if other.place.identity != best.place.identity and _is_claim(other, best):
            return Claims(other.place, best.place)
    return best


def _by_one_way(way: Sequence[Place]) -> Choice | Claims:
    recorded = next((at for at, each in enumerate(way) if each.records), len(way))
    settings = next((at for at, each in enumerate(way) if each.settings), None)
    if settings is not None:
        if recorded < settings:
            return Claims(way[recorded], way[settings])
        return Choice(way[settings], Reason.SETTINGS)
    checkout = next((at for at, each in enumerate(way) if each.checkout), None)
    if checkout is not None:
        if recorded < checkout and way[checkout].records:
            return Claims(way[recorded], way[checkout])
        if recorded <= checkout:
            return Choice(way[recorded], Reason.RECORDS)
        return Choice(way[checkout], Reason.CHECKOUT)
    if recorded == 0:
        return Choice(way[0], Reason.RECORDS)
    if way[0].used:
        return Choice(way[0], Reason.USED)
    lender = next((each for each in way if each.records and each.lends), None)
    return Choice(way[0], Reason.NOTHING) if lender is None else Choice(lender, Reason.RECORDS)


def _is_claim(other: Choice, best: Choice) -> bool:
    """Return True if a folder to which another way leads claims the project, too."""
    if not other.place.records or not (other.place.settings or other.place.lends):
        return False
    return best.place.records or (best.reason, other.reason) == (Reason.SETTINGS, Reason.RECORDS)


def root_of(folder: str) -> Path:
    """The root of the project of a folder. Raises ProjectError where two folders claim it."""
    found = choose([[_place(each) for each in way] for way in ways_up(folder)])
    if isinstance(found, Claims):
        raise _two_projects(folder, found)
    return Path(_without_dots(found.place).path)


def rehearsals_below(folder: str, root: Path) -> list[Path]:
    """Folders below a root, upwards from a folder, that have a rehearsal of their own with stacks."""
    way = next((way for way in ways_up(folder) if str(root) in way), ())
    below = way[: way.index(str(root))] if way else ()
    return [Path(each) for each in below if _stacks(Path(each, ".orch", "rehearsal"))]


def _place(folder: str) -> Place:
    dot = Path(folder, ".orch")
    try:
        found = os.stat(folder)
    except (OSError, ValueError):  # not there yet, or out of reach
        return Place(folder, folder)
    stacks = _stacks(dot)
    is_common = folder == "/" or _is_home(found) or bool(found.st_mode & stat.S_IWOTH)
    return Place(
        folder,
        (found.st_dev, found.st_ino),
        settings=os.path.lexists(dot.parent / "orch.yml"),
        checkout=os.path.exists(dot.parent / ".git"),
        used=any(os.path.exists(dot / name) for name in ("project", "state", "ledger.db")),
        stacks=stacks,
        lends=not is_common
        and stacks is not None
        and found.st_uid in trusted_owners(os.geteuid(), os.environ),
    )


def _is_home(found: os.stat_result) -> bool:
    """Return True if a folder is the home folder, under any name."""
    try:
        return os.path.samestat(found, os.stat(os.path.expanduser("~")))
    except OSError:
        return False


def recorded_stacks(dot: Path) -> Mapping[str, tuple[str, ...]]:
    """The stacks that the state in an `.orch` records, by the name of their project, of which it may have had
    several. Copies that a move of the state left are none; while it is not finished, the stacks are here."""
    found: dict[str, tuple[str, ...]] = {}
    for folder in (dot / "state" / ".pulumi" / "stacks").glob("*"):
        names = {each.name.rpartition(".json")[0] for each in folder.glob("*") if is_checkpoint(each.name)}
        names.discard(HOLD)
        is_moving = _moves_still(folder / f"{HOLD}.pulumi-tags")
        if kept := sorted(
            name for name in names if is_moving or not _has_moved(folder / f"{name}.pulumi-tags")
        ):
            found[folder.name] = tuple(kept)
    return found


def lost_stacks(root: Path) -> tuple[str, ...]:
    """Stacks of a folder without an orch.yml that have the engine's settings there and no state: an orch.yml
    that is gone may have said where it is."""
    if (root / "orch.yml").exists():
        return ()
    files = (root / ".orch" / "config").glob("Pulumi.*.yaml")
    known = {name for names in recorded_stacks(root / ".orch").values() for name in names}
    return tuple(sorted({each.name[len("Pulumi.") : -len(".yaml")] for each in files} - known - {HOLD}))


def is_checkpoint(name: str) -> bool:
    """Return True if a file of a state records a stack."""
    return name.endswith(tuple(f".json{compressed}" for compressed in ("", *COMPRESSED)))


def _has_moved(tags: Path) -> bool:
    return MOVED in _text(tags)


def _moves_still(tags: Path) -> bool:
    """Return True if the tags of the hold are of a move that has not finished, or was killed: a finished move
    keeps the hold for many years."""
    years = re.search(rf"(\d{{4}})-\S+ (\d{{4}})-\S+ {re.escape(MOVED)}", _text(tags))
    return years is not None and int(years[2]) - int(years[1]) <= 1


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _stacks(dot: Path) -> tuple[str, ...] | None:
    """The stacks that an `.orch` records; None for one that this user may not look into."""
    if not os.path.isdir(dot):
        return ()
    if not os.access(dot, os.R_OK | os.X_OK):
        return None
    return tuple(sorted(name for names in recorded_stacks(dot).values() for name in names))


def _two_projects(folder: str, claims: Claims) -> ProjectError:
    inner, outer = _without_dots(claims.inner), _without_dots(claims.outer)
    own = os.path.realpath(folder if os.path.isdir(folder) else os.path.dirname(os.path.abspath(folder)))
    mistake = ""
    if inner.path.startswith(f"{outer.path.rstrip('/')}/"):
        own = inner.path
        mark = f"{outer.path.rstrip('/')}/{'orch.yml' if outer.settings else '.git'}"
        mistake = f"\nif {mark} is there by mistake: remove it"
    hint = (
        f"to keep them apart: `orch init {shlex.quote(own)}` makes it a project of its own\n"
        f"to make them one: do that first, then `orch down` what is up in it, then remove {own}/orch.yml"
    )
    return ProjectError(
        f"two projects claim this folder: {inner.path} and {outer.path}",
        where=os.path.abspath(folder),
        detail="\n".join(_words(each) for each in (inner, outer)),
        hint=hint + mistake,
        code="ORCH308",
    )


def _without_dots(place: Place) -> Place:
    return replace(place, path=os.path.realpath(place.path)) if ".." in place.path.split("/") else place


def _words(place: Place) -> str:
    checkout = "is the root of a Git checkout; " if place.checkout else ""
    why = "has an orch.yml; " if place.settings else checkout
    if place.stacks is None:
        return f"{place.path}: {why}its .orch is closed to you"
    stacks = list(place.stacks)
    records = f"{counted(len(stacks), 'stack')} ({few(stacks, 5)})" if stacks else "no stack"
    return f"{place.path}: {why}its .orch records {records}"
