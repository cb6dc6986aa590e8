"""Executables that answer for a provider in a rehearsal, and how what is real keeps away from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from orch.stacks.errors import ProjectError

VARIABLE = "ORCH_REHEARSAL_"
"""How variables begin that tell a simulated provider which account it serves; a backend's name follows."""

MARK = "orch-rehearsal-shim"
"""What a shim holds in its first lines."""


def refuse_shims(environment: Mapping[str, str]) -> None:
    """For what is real: no simulated provider may answer. `environment` is what the engine will be given.

    Raises ProjectError.
    """
    both = {**os.environ, **environment}
    variable = next((name for name in sorted(both) if name.startswith(VARIABLE) and both[name]), None)
    if variable is not None:
        raise ProjectError(
            "a rehearsal's simulated cloud is set in the environment",
            detail=f"{variable} is set, but this command is for the real cloud",
            hint=f"unset {variable}, or add --rehearse",
            code="ORCH302",
        )
    found = next(_shims_on(both.get("PATH", "")), None)
    if found is not None:
        raise ProjectError(
            "a rehearsal's simulated provider is on PATH",
            where=str(found),
            detail=f"{found.name} would answer in the place of the real cloud, and nothing would be created",
            hint="remove its folder from PATH, or add --rehearse",
            code="ORCH302",
        )


def _shims_on(path: str) -> Iterator[Path]:
    for folder in dict.fromkeys(path.split(os.pathsep)):
        try:
            found = sorted(Path(folder or ".").glob("pulumi-resource-*"))
        except OSError:
            continue
        yield from (each for each in found if _is_shim(each))


def _is_shim(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(512)
    except OSError:
        return False
