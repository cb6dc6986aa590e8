"""Simulated backends by name.

A simulator is a package of this folder. Its `__init__.py` registers it by `PLUGIN`, the executable of the
Pulumi package that it stands for, or by `SERVER`, if a real server takes the place of an account; the rest of
it is imported when it is asked for. A backend of another package names its own (`Backend.rehearsal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from orch.rehearsal.account import SimulatedAccount
from orch.spec.models.backends import installed

if TYPE_CHECKING:
    from orch.rehearsal.shell import Shell


@dataclass(frozen=True)
class Simulator:
    """A simulated backend. `package`: where it is; `plugin`: the executable that it stands for, None for a
    server."""

    package: str
    plugin: str | None

    @property
    def hooks(self) -> Any:
        """The hooks of a simulated account, or the module that starts a server."""
        module = import_module(f"{self.package}.hooks")
        return module if self.plugin is None else module.HOOKS

    def open(self, path: Path | str) -> SimulatedAccount:
        """Return the account of a file. Raises SimulationError."""
        account: SimulatedAccount = self.hooks.account(path)
        return account

    def shell(self, account: SimulatedAccount) -> Shell:
        """Return the verbs of `python -m orch.rehearsal` for an account."""
        shell: type[Shell] = import_module(f"{self.package}.shell").SHELL
        return shell(account)


@cache
def simulators() -> Mapping[str, Simulator]:
    """All simulated backends, by name. Imports none of them."""
    found: dict[str, Simulator] = {}
    for module in iter_modules([str(Path(__file__).parent)]):
        name = f"{__package__}.{module.name}"
        marks = vars(import_module(name)) if module.ispkg else {}
        if "PLUGIN" in marks or "SERVER" in marks:
            found[module.name.removesuffix("_")] = Simulator(name, marks.get("PLUGIN"))
    return {**found, **_of_other_packages()}


def _of_other_packages() -> Mapping[str, Simulator]:
    if not installed():
        return {}
    from orch.components.registry.backends import backend

    found: dict[str, Simulator] = {}
    for name in installed():
        other = backend(name)
        if other.rehearsal is not None:
            plugin = f"pulumi-resource-{other.packages[0].rstrip(':')}"
            found[name] = Simulator(other.rehearsal, plugin)
        elif other.rehearsal_server is not None:
            found[name] = Simulator(other.rehearsal_server, None)
    return found


def accounts() -> Mapping[str, Simulator]:
    """The simulated backends that have an account in a file."""
    return {name: each for name, each in simulators().items() if each.plugin is not None}


def servers() -> Mapping[str, Simulator]:
    """The simulated backends that are a real server on this machine."""
    return {name: each for name, each in simulators().items() if each.plugin is None}
