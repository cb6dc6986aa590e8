"""`orch.lock`: the machine images that `up` resolved, by fleet. It is beside orch.yml, in version control.

A stack's own record wins; the lock file is for a stack without one, in another checkout or after a `down`, so
that the same fleet file brings up the same machines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml

from orch.runner.private import stage_file
from orch.stacks.errors import ProjectError

VERSION = 1
HEAD = "# Images that `orch up` resolved. Commit this file; `orch up --upgrade` renews it.\n"


def read_lock(path: Path, fleet: str) -> dict[str, str]:
    """The pins of a fleet; {} when the file has none. Raises ProjectError for a file that cannot be used."""
    pins = _fleets(path).get(fleet) or {}
    if not isinstance(pins, dict):
        raise _unusable(path, f"`{fleet}` is not a mapping")
    return {str(key): str(value) for key, value in cast("dict[object, object]", pins).items()}


def write_lock(path: Path, fleet: str, pins: dict[str, str]) -> None:
    """Record the pins of a fleet; those of other fleets stay. Writes nothing when they are recorded already.

    The file gets the access mode of its folder: a rehearsal's is private to its owner. Raises ProjectError.
    """
    fleets = _fleets(path)
    if fleets.get(fleet) == pins or not (pins or fleet in fleets):
        return
    fleets[fleet] = dict(sorted(pins.items()))
    text = HEAD + yaml.safe_dump(
        {"version": VERSION, "fleets": dict(sorted(fleets.items()))}, sort_keys=False
    )
    try:
        stage_file(path, text, path.parent.stat().st_mode & 0o666).replace(path)
    except OSError as error:
        raise ProjectError(
            "the lock file cannot be written",
            where=str(path),
            detail=error.strerror or str(error),
            hint="make the folder writable, then run `orch up` again",
            code="ORCH302",
        ) from error


def _fleets(path: Path) -> dict[str, Any]:
    try:
        data: Any = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unusable(path, str(error)) from error
    if data is None:
        return {}
    if not isinstance(data, dict) or not isinstance(data.get("fleets", {}), dict):
        raise _unusable(path, "it is not what `orch up` writes")
    if data.get("version") != VERSION:
        raise _unusable(path, f"its version is {data.get('version')}, this orch knows {VERSION}")
    return dict(data.get("fleets") or {})


def _unusable(path: Path, why: str) -> ProjectError:
    return ProjectError(
        "the lock file cannot be used",
        where=str(path),
        detail=why,
        hint="take it from version control again, or delete it: `orch up` resolves the images anew",
        code="ORCH302",
    )
