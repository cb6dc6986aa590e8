"""Which references a property may hold, and when they are filled in: one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orch.spec.grammar.interpolate import ReferenceSite


@dataclass(frozen=True)
class Scope:
    """Time at which references of a property are filled in, and the namespaces allowed besides `env`."""

    site: ReferenceSite = ReferenceSite.READ
    namespaces: frozenset[str] = frozenset()


def _scope(site: ReferenceSite, *namespaces: str) -> Scope:
    return Scope(site, frozenset(namespaces))


_READ = _scope(ReferenceSite.READ)
_SECRET = _scope(ReferenceSite.LAUNCH, "secrets")
_JOB = _scope(ReferenceSite.TEXT, "orch")
_ENV = _scope(ReferenceSite.TEXT, "orch", "secrets")
_ARGS = _scope(ReferenceSite.TEXT, "orch", "run")
_COMMAND = _scope(ReferenceSite.COMMAND, "orch", "run")

_RUN = {
    "env": _ENV,
    "volumes": _JOB,
    "working_dir": _JOB,
    "registry_auth": _SECRET,
}
_SCOPES: dict[str, dict[str, Scope]] = {
    "task": {**_RUN, "commands": _COMMAND},
    "dev-environment": {**_RUN, "init": _COMMAND},
    "fleet": {"env": _scope(ReferenceSite.LAUNCH, "orch", "secrets")},
}
_GROUP = {
    "commands": _scope(ReferenceSite.COMMAND, "orch", "run", "groups"),
    "env": _scope(ReferenceSite.TEXT, "orch", "secrets", "groups"),
}
_LAUNCHERS = ("torchrun", "mpirun")


def scope_of(kind: str, path: Sequence[str | int]) -> Scope:
    """The scope of the text at `path` in a document of `kind`."""
    if kind == "project" and len(path) > 2 and path[0] == "defaults" and path[1] in ("fleet", "task"):
        kind, path = str(path[1]), path[2:]
    first = str(path[0]) if path else ""
    if kind == "task":
        if first in _LAUNCHERS:
            return _ARGS if len(path) == 1 or path[1] == "args" else _READ
        if first == "groups" and len(path) > 2:
            return _GROUP.get(str(path[2]), _READ)
    if kind == "fleet" and first in ("init", "mounts", "ssh_config"):
        inner = path[2] if first != "ssh_config" and len(path) > 2 else path[3] if len(path) > 3 else ""
        return _SECRET if inner in ("env", "options") else _READ
    if kind not in _SCOPES:
        return _SECRET if {"creds", "kubeconfig"}.intersection(path) else _READ
    return _SCOPES[kind].get(first, _READ)
