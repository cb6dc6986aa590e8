"""Backends by name.

Those of this package are found by their folder, those of others by an entry point (see `base.py`); each is
imported when something is asked of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from orch.catalog.load import folder_of
from orch.components.base import Backend
from orch.spec.errors import ExitCode, OrchError
from orch.spec.models.backends import installed, provisioned
from orch.spec.models.backends.base import BackendSettings

AnyBackend = Backend[Any, Any, Any]


class BrokenBackend(OrchError):
    """A backend of another package that cannot be used."""

    exit_code = ExitCode.CONFIG


@cache
def backend(name: str) -> AnyBackend:
    """The backend of this name. Raises KeyError when there is none, BrokenBackend."""
    if name in installed():
        return _of_another_package(name)
    folder = f"orch.components.{folder_of(name)}"
    if not name.isidentifier() or find_spec(folder) is None:
        raise KeyError(name)
    if find_spec(f"{folder}.backend") is None:
        raise KeyError(name)  # its folder is begun
    module = import_module(f"{folder}.backend")
    (subclass,) = (
        each
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, Backend) and each.__dict__.get("name") == name
    )
    return subclass()


def _of_another_package(name: str) -> AnyBackend:
    entry = installed()[name]
    where = f"{entry.value}, entry point {entry.name} of {entry.group}"
    package = entry.dist.name if entry.dist else entry.module
    try:
        subclass = entry.load()
    except Exception as error:
        raise BrokenBackend(
            f"the backend {name} cannot be loaded",
            where=where,
            detail=f"{type(error).__name__}: {error}",
            hint=f"mend or remove the package {package}",
        ) from error
    if not (inspect.isclass(subclass) and issubclass(subclass, Backend)):
        raise BrokenBackend(
            f"the backend {name} is no subclass of orch.components.base.Backend",
            where=where,
            hint=f"mend or remove the package {package}",
        )
    missing = sorted(subclass.__abstractmethods__)
    if subclass.register is Backend.register and subclass.module_name("resources") is None:
        missing.append("register")
    missing += [each for each in ("name", "settings") if not hasattr(subclass, each)]
    if missing:
        raise BrokenBackend(
            f"the backend {name} has no {', '.join(f'`{each}`' for each in missing)}",
            where=where,
            hint="orch.components.base.Backend says what each gives",
        )
    return subclass()


def require_backend(name: str) -> AnyBackend:
    try:
        return backend(name)
    except KeyError:
        raise BrokenBackend(
            f"the fleet is on {name}, and no package here has that backend",
            hint="install the package, or write `backends` to move the fleet",
        ) from None


def tunnel_environment(settings: Iterable[BackendSettings]) -> dict[str, str]:
    """What commands that lead to nodes of clouds have to find in their environment: secrets among them."""
    variables = dict[str, str]()
    for each in settings:
        if each.type in provisioned():
            variables |= backend(each.type).tunnel_environment(each)
    return variables


def backends_of(types: Iterable[str]) -> frozenset[str]:
    """The backends that resources of these types, as the engine calls them, are of."""
    known, found = frozenset(types), set[str]()
    for name in provisioned():
        try:
            packages = backend(name).packages
        except BrokenBackend:
            continue
        # A fleet that never had a node is a component alone.
        own = {
            f"orch:fleet:{name.capitalize()}",
            *(f"pulumi:providers:{each.rstrip(':')}" for each in packages),
        }
        if known & own or any(each.startswith((f"orch:{name}:", *packages)) for each in known):
            found.add(name)
    return frozenset(found)
