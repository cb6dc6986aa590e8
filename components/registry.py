"""Backends by name, and where among them a fleet goes.

Those of this package are found by their folder, those of others by an entry point (see `base.py`); each is
imported when something is asked of it.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Any

from orch.components.base import Backend, Candidate
from orch.components.cloud.orphans import StackSnapshot
from orch.components.deployment import Deployment, Place
from orch.components.request import PlanRequest
from orch.spec.errors import ExitCode, OrchError
from orch.spec.findings import PlanError, PlanErrors
from orch.spec.models.backends import effective, installed, provisioned
from orch.spec.models.backends.base import BackendSettings
from orch.spec.rules.unsupported import backends_hint

AnyBackend = Backend[Any, Any, Any]

LOCAL = "local"


class BrokenBackend(OrchError):
    """A backend of another package that cannot be used."""

    exit_code = ExitCode.CONFIG


@cache
def backend(name: str) -> AnyBackend:
    """The backend of this name. Raises KeyError when there is none, BrokenBackend."""
    if name in installed():
        return _of_another_package(name)
    if not name.isidentifier() or find_spec(f"orch.components.{name}") is None:
        raise KeyError(name)
    module = import_module(f"orch.components.{name}.backend")
    (found,) = (
        each
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, Backend) and each.__dict__.get("name") == name
    )
    return found()


def _of_another_package(name: str) -> AnyBackend:
    entry = installed()[name]
    where = f"{entry.value}, entry point {entry.name} of {entry.group}"
    package = entry.dist.name if entry.dist else entry.module
    try:
        found = entry.load()
    except Exception as error:
        raise BrokenBackend(
            f"the backend {name} cannot be loaded",
            where=where,
            detail=f"{type(error).__name__}: {error}",
            hint=f"mend or remove the package {package}",
        ) from error
    if not (inspect.isclass(found) and issubclass(found, Backend)):
        raise BrokenBackend(
            f"the backend {name} is no subclass of orch.components.base.Backend",
            where=where,
            hint=f"mend or remove the package {package}",
        )
    missing = sorted(found.__abstractmethods__)
    missing += [each for each in ("name", "settings") if not hasattr(found, each)]
    if missing:
        raise BrokenBackend(
            f"the backend {name} has no {', '.join(f'`{each}`' for each in missing)}",
            where=where,
            hint="orch.components.base.Backend says what each gives",
        )
    return found()


def compile_fleet(request: PlanRequest) -> Deployment:
    """Plan a fleet at the best of its candidates, of all its backends in one order by price.

    A fleet that is up stays where it is, as long as its file permits. The other candidates are planned when
    they are tried.

    Raises PlanError, and what asking the backends raises.
    """
    candidates, refused = _candidates(request)
    if not candidates:
        raise _none(request, refused)
    found = _planned(request, candidates)
    told = [f"not on {name}: {error.summary}" for name, error in refused.items()]
    would = effective(request.fleet.written_backends, tuple(each.type for each in request.settings))
    if request.fleet.ssh_config is None and would and request.backends[0] not in would:
        at = request.backends[0]
        told.append(f"it stays on {at}, where it is: write `backends: [{would[0]}]` to move it")
    return replace(found, reasons=(*found.reasons, *told)) if told else found


def _candidates(request: PlanRequest) -> tuple[tuple[Candidate, ...], dict[str, PlanErrors]]:
    """Where the fleet may go, in the order to try, and why not on the backends that have no such place."""
    found: list[Sequence[Candidate]] = []
    refused: dict[str, PlanErrors] = {}
    at = request.at
    for name in sorted(request.backends, key=lambda each: each != at):  # where it is before all others
        try:
            found.append(_known(name).candidates(request))
        except PlanErrors as error:
            if name == at:
                raise  # a mistake in the file takes no fleet from its backend
            refused[name] = error
        else:
            if found[-1] and found[-1][0].kept:
                return tuple(found[-1]), {}
    # Nothing is cheaper than this machine: beside it the order of the file counts.
    order = chain.from_iterable if LOCAL in request.backends else by_price
    return tuple(order(found)), refused


def _known(name: str) -> AnyBackend:
    try:
        return backend(name)
    except KeyError:
        raise BrokenBackend(
            f"the fleet is on {name}, and no package here has that backend",
            hint="install the package, or write `backends` to move the fleet",
        ) from None


def by_price(lists: Iterable[Sequence[Candidate]]) -> Iterator[Candidate]:
    """The candidates of several backends: the cheapest of their next ones is next, each keeps its order."""
    left = [deque(each) for each in lists if each]
    while left:
        best = min(left, key=lambda each: float("inf") if each[0].price is None else each[0].price)
        yield best.popleft()
        left = [each for each in left if each]


def _planned(request: PlanRequest, candidates: Sequence[Candidate]) -> Deployment:
    """The fleet planned at the first of the candidates that its backend has; the others as places to try."""
    first, *others = _settled(request, candidates)
    elsewhere = tuple(Place(other.words, partial(_planned, request, (other,))) for other in others)
    found = replace(backend(first.backend).deployment(request, first), elsewhere=elsewhere)
    return replace(found, more=partial(_more, request, first)) if first.kept else found


def _more(request: PlanRequest, kept: Candidate) -> tuple[Place, ...]:
    """Where nodes may go that the place where the fleet is has no room for."""
    places = backend(kept.backend).more_places(request, kept)
    return tuple(Place(each.words, partial(_planned, request, (each,))) for each in places)


def _settled(request: PlanRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The same with all known of the first; without those before it that its backend does not have."""
    head = candidates[0].backend
    count = next((i for i, each in enumerate(candidates) if each.backend != head), len(candidates))
    same, others = candidates[:count], candidates[count:]
    try:
        return (*backend(head).settle(request, same), *others)
    except PlanErrors:
        if not others:
            raise
        return _settled(request, others)


def _none(request: PlanRequest, refused: dict[str, PlanErrors]) -> PlanError:
    if refused:
        return PlanErrors(each for error in refused.values() for each in error.findings)
    return PlanError(
        "ORCH201",
        f"this version provisions {', '.join(provisioned())} only, not {', '.join(request.fleet.backends)}",
        path="backends",
        hint=backends_hint(each.type for each in request.settings),
    )


def tunnel_environment(settings: Iterable[BackendSettings]) -> dict[str, str]:
    """What commands that lead to nodes of clouds have to find in their environment: secrets among them."""
    found = dict[str, str]()
    for each in settings:
        if each.type in provisioned():
            found |= backend(each.type).tunnel_environment(each)
    return found


def _with_orphans(snapshot: StackSnapshot) -> Iterator[AnyBackend]:
    """Backends that a stack has resources of which a killed call may have left some unrecorded."""
    for name in provisioned():
        try:
            found = backend(name)
        except BrokenBackend:
            continue  # another package's: whoever uses that backend is told
        if any(any(snapshot.of(prefix)) for prefix in found.packages):
            yield found


def may_have_orphans(snapshot: StackSnapshot) -> bool:
    """Whether anything of a stack is in a cloud, where what is not recorded may be left."""
    return any(True for _ in _with_orphans(snapshot))


def delete_orphans(snapshot: StackSnapshot) -> tuple[str, ...]:
    """Remove what a call that did not end left in the clouds of a stack; what was removed.

    Raises what asking the cloud raises."""
    return tuple(name for each in _with_orphans(snapshot) for name in each.delete_orphans(snapshot))
