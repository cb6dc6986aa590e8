"""The routes of the REST API by path, and what all kinds of resources do alike.

Documents are answers as JSON; what begins with `_` is the account's own and never leaves it.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from orch.rehearsal.http_service import Answer
from orch.rehearsal.runpod.api.errors import RunpodError, not_found
from orch.rehearsal.store import Doc, Store

if TYPE_CHECKING:
    from orch.rehearsal.account import SimulatedAccount

PAGE = 100
MOST_PAGE = 1000


@dataclass(frozen=True)
class Request:
    """One call. `action`: its operationId in the published schema; `id`: of its path, empty without."""

    account: SimulatedAccount
    action: str
    id: str
    query: Mapping[str, str]
    body: Any

    @property
    def store(self) -> Store:
        return self.account.store


Function = Callable[[Request], Answer]


@dataclass(frozen=True)
class Route:
    method: str
    pattern: re.Pattern[str]
    action: str
    function: Function


_ROUTES: list[Route] = []


def route(method: str, path: str, action: str) -> Callable[[Function], Function]:
    """Register what a route does. `action`: its operationId."""

    def register(function: Function) -> Function:
        pattern = re.compile(path.replace("{id}", "(?P<id>[^/]+)"))
        _ROUTES.append(Route(method, pattern, action, function))
        return function

    return register


@cache
def all_routes() -> tuple[Route, ...]:
    for name in ("catalog", "clusters", "graphql", "pods", "volumes"):
        import_module(f"orch.rehearsal.runpod.api.{name}")
    return tuple(_ROUTES)


def matching(method: str, path: str) -> tuple[Route, str]:
    """The route of a request, and the id of its path. Raises RunpodError."""
    known = [(each, found) for each in all_routes() if (found := each.pattern.fullmatch(path))]
    for each, found in known:
        if each.method == method:
            return each, found.groupdict().get("id", "")
    if known:
        allowed = ", ".join(sorted({each.method for each, _ in known}))
        text = "The requested method is not allowed for this path."
        raise RunpodError(405, text, headers={"Allow": allowed})
    raise not_found("route")


# -- resources ----------------------------------------------------------------------------------------------


def new_id(request: Request, kind: str) -> str:
    number = request.store.count(f"id {kind}")
    return hashlib.sha256(f"{request.account.seed} {kind} {number}".encode()).hexdigest()[:14]


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def existing(request: Request, kind: str) -> Doc:
    doc = request.store.get(request.id, kind)
    if doc is None:
        raise not_found(kind.replace("-", " "))
    return doc


def page(request: Request, name: str, items: list[Doc], *, sized: bool = False) -> Answer:
    """One page of a list. `sized`: its size can be asked for, as public clients do of pods since September
    2026 (`limit`, `cursor`, and `pagination` in the answer)."""
    if "limit" in request.query and not sized:
        raise RunpodError(400, "unknown query parameter limit")
    cursor, limit = request.query.get("cursor", "0"), request.query.get("limit", str(PAGE))
    if not cursor.isdecimal():
        raise RunpodError(400, "unknown cursor")
    start, size = int(cursor), int(limit) if limit.isdecimal() else 0
    if not 1 <= size <= MOST_PAGE:
        raise RunpodError(422, "Request validation failed.", errors=[f"$.limit: 1 to {MOST_PAGE}"])
    more = start + size < len(items)
    pagination = {"hasNextPage": more, **({"nextCursor": str(start + size)} if more else {})}
    return Answer(200, {name: items[start : start + size], "pagination": pagination})


def public(document: Any) -> Any:
    """Without what is the account's own."""
    if isinstance(document, dict):
        return {key: public(value) for key, value in document.items() if not str(key).startswith("_")}
    return [public(each) for each in document] if isinstance(document, list) else document


def each_of(request: Request, kind: str) -> Iterator[Doc]:
    return (doc for _, doc in request.store.each(kind))
