"""Backends of the language: the settings of each, one module per backend, and those of other packages.

`MODELS` are those of this package, by `type`. A module has the name of its backend, with a `_` behind it
where that is a word of Python; it is loaded when its settings are asked for, which most runs never do.
Another package adds a backend by an entry point of the group `orch.backends` (see `components/base.py`); what
it loads has its settings in `settings`. It is loaded when a file names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeVar, cast

from orch.spec.models.backends.base import BackendSettings

__all__ = [
    "BACKEND_MODELS",
    "GROUP",
    "MODELS",
    "OTHER_NAMES",
    "AnyBackend",
    "effective",
    "entry_of",
    "installed",
    "made_with_runs",
    "provisioned",
    "queues_pods",
    "settings_model",
    "title",
]

S = TypeVar("S", bound=BackendSettings)

GROUP = "orch.backends"
"""Entry points of other packages' backends."""

OTHER_NAMES = {"remote": "ssh"}


_SHARED = frozenset({"base", "credentials"})
"""Modules of this package that are no backend's."""


class _Settings(Mapping[str, type[BackendSettings]]):
    """Models by the names of their backends. `modules`: the module of each name."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> type[BackendSettings]:
        return _model_in(self._modules[name])

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


@cache
def _model_in(module: str) -> type[BackendSettings]:
    found = vars(import_module(f"{__name__}.{module}")).values()
    return next(
        each for each in found if isinstance(each, type) and issubclass(each, BackendSettings) and each.title
    )


_MODULES = {
    module.name.removesuffix("_"): module.name
    for module in sorted(iter_modules(__path__), key=lambda module: module.name)
    if module.name not in _SHARED
}
MODELS: Mapping[str, type[BackendSettings]] = _Settings(_MODULES)
BACKEND_MODELS: Mapping[str, type[BackendSettings]] = _Settings(
    {**_MODULES, **{other: _MODULES[name] for other, name in OTHER_NAMES.items()}}
)
"""The same, by their other names too."""

if TYPE_CHECKING:
    AnyBackend = BackendSettings
else:

    class AnyBackend(BackendSettings):
        """A backend of which a file says the `type`."""

        @classmethod
        def variants(cls) -> tuple[type[BackendSettings], ...]:
            return tuple(MODELS.values())


@cache
def installed() -> Mapping[str, EntryPoint]:
    """Backends of other packages, by name."""
    return {each.name: each for each in entry_points(group=GROUP) if each.name not in MODELS}


@cache
def settings_model(name: str) -> type[BackendSettings] | None:
    """The settings of a backend of this or of another package; None when there is none of that name.

    Raises what importing the other package raises.
    """
    name = OTHER_NAMES.get(name, name)
    if name in MODELS:
        return MODELS[name]
    if name in installed():
        return cast("type[BackendSettings]", installed()[name].load().settings)
    return None


def entry_of(configured: Iterable[BackendSettings], model: type[S]) -> S:
    """The entry of a backend among those of `orch.yml`, or its defaults."""
    return next((each for each in configured if isinstance(each, model)), None) or model.model_validate({})


def title(name: str) -> str:
    """The name of a backend as people write it."""
    model = settings_model(name)
    return model.title if model else name


def provisioned() -> tuple[str, ...]:
    """Backends that nodes are created on by this version, those of other packages last."""
    return (*(name for name, model in MODELS.items() if model.provisioned), *installed())


def made_with_runs(backends: Iterable[str]) -> bool:
    """Return True if nodes on these backends are created with a run and deleted with it; False if only some
    are."""
    models = [settings_model(name) for name in backends]
    return bool(models) and all(each is not None and each.made_with_runs for each in models)


def queues_pods(backend: str) -> bool:
    """Return True if fleets of a backend have no nodes of their own: runs bring pods that its queue
    starts."""
    model = settings_model(backend)
    return model is not None and model.queues_pods


def effective(written: tuple[str, ...] | None, configured: tuple[str, ...]) -> tuple[str, ...]:
    """Return the backends that may have a fleet's nodes: those it names, else those of `orch.yml`, else
    `local`.

    `written`: the fleet's `backends`, None where it has none. Those without a driver are left out.
    """
    usable = provisioned()
    if written is not None:
        return tuple(name for name in dict.fromkeys(written) if name in usable)
    return tuple(name for name in dict.fromkeys(configured) if name in usable) or ("local",)
