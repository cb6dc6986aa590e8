"""Executables that replace a provider in a rehearsal, and the check that real commands never meet one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from orch.stacks.errors import ProjectError

VARIABLE = "ORCH_REHEARSAL_"
"""Prefix of the variables that tell a simulated provider its account; the backend's name follows."""

PROJECT_HOOK = "ORCH_PROJECT_HOOK"
"""The variable of `orch engine env --rehearse` that names the function which makes a project a rehearsal, for
a program that `pulumi` runs by hand: `module:function`."""

MARK = "orch-rehearsal-shim"
"""Text in the first lines of a shim."""


def refuse_shims(environment: Mapping[str, str]) -> None:
    """Refuse a real command that a simulated provider would answer. `environment`: the engine's variables.

    Raises ProjectError.
    """
    merged = {**os.environ, **environment}
    variable = next((name for name in sorted(merged) if name.startswith(VARIABLE) and merged[name]), None)
    if variable is not None:
        raise ProjectError(
            "a rehearsal's simulated cloud is set in the environment",
            detail=f"{variable} is set, but this command is for the real cloud",
            hint=f"unset {variable}, or add --rehearse",
            code="ORCH302",
        )
    shim = next(_shims_on(merged.get("PATH", "")), None)
    if shim is not None:
        raise ProjectError(
            "a rehearsal's simulated provider is on PATH",
            where=str(shim),
            detail=f"{shim.name} would answer in the place of the real cloud, and nothing would be created",
            hint="remove its folder from PATH, or add --rehearse",
            code="ORCH302",
        )


def _shims_on(path: str) -> Iterator[Path]:
    for folder in dict.fromkeys(path.split(os.pathsep)):
        try:
            plugins = sorted(Path(folder or ".").glob("pulumi-resource-*"))
        except OSError:
            continue
        yield from (plugin for plugin in plugins if _is_shim(plugin))


def _is_shim(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(512)
    except OSError:
        return False
