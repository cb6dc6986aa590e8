"""The routes of the REST API by path, and what all kinds of resources do alike: names, operations.

Documents are answers as JSON; what begins with `_` is the project's own and never leaves it.
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

from orch.rehearsal.crusoe.api.errors import CrusoeError, forbidden, not_found
from orch.rehearsal.http_service import Answer
from orch.rehearsal.store import Doc, Store

if TYPE_CHECKING:
    from orch.rehearsal.account import SimulatedAccount

PROJECT = "11111111-2222-4333-8444-555555555555"
ORGANIZATION = "66666666-7777-4888-8999-000000000000"


@dataclass(frozen=True)
class Request:
    """One call. `action`: what it is called in the log; `id`: of its path, empty without."""

    account: SimulatedAccount
    action: str
    id: str
    query: Mapping[str, str]
    body: Any

    @property
    def store(self) -> Store:
        return self.account.store

    def each(self, kind: str) -> Iterator[Doc]:
        return (doc for _, doc in self.store.each(kind))


Function = Callable[[Request], Answer]


@dataclass(frozen=True)
class Route:
    method: str
    pattern: re.Pattern[str]
    action: str
    function: Function


_ROUTES: list[Route] = []


def route(method: str, path: str, action: str) -> Callable[[Function], Function]:
    """Register what a route does. `path`: below the version; `{p}` is the project, `{id}` a resource."""

    def register(function: Function) -> Function:
        text = path.replace("{p}", "(?P<project>[^/]+)").replace("{id}", "(?P<id>[^/]+)")
        _ROUTES.append(Route(method, re.compile(f"/v1{text}"), action, function))
        return function

    return register


@cache
def all_routes() -> tuple[Route, ...]:
    for module in ("catalog", "networks", "storage", "instances"):
        import_module(f"orch.rehearsal.crusoe.api.{module}")
    return tuple(_ROUTES)


def matching(method: str, path: str) -> tuple[Route, str]:
    """The route of a path, and the id in it. Raises CrusoeError, also for a project of somebody else."""
    known = [(each, found) for each in all_routes() if (found := each.pattern.fullmatch(path))]
    for each, found in known:
        if each.method == method:
            parts = found.groupdict()
            if parts.get("project", PROJECT) != PROJECT:
                raise forbidden()
            return each, parts.get("id") or ""
    raise CrusoeError(405, "method_not_allowed") if known else not_found("route")


# -- resources ----------------------------------------------------------------------------------------------


def new_id(request: Request, kind: str) -> str:
    number = request.store.count(f"id {kind}")
    digest = hashlib.sha256(f"{request.account.seed} {kind} {number}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def existing(request: Request, kind: str, resource: str | None = None) -> Doc:
    """A resource by its id, that of the path without one. Raises CrusoeError."""
    doc = request.store.get(request.id if resource is None else resource, kind)
    if doc is None:
        raise not_found(kind)
    return doc


def made(request: Request, kind: str, document: Doc) -> Doc:
    """A resource that begins to be: its document. Names need not be unique."""
    now = stamp(request.account.now())
    doc: Doc = {"id": new_id(request, kind), "created_at": now, "updated_at": now, **document}
    request.store.put(doc["id"], kind, str(doc.get("location") or ""), doc)
    return doc


def operation(
    request: Request, resource: str, *, result: Doc | None = None, fails: Doc | None = None
) -> Answer:
    """The answer of a call that goes on for a while: the operation, which ends at the second look."""
    doc: Doc = {
        "operation_id": new_id(request, "operation"),
        "state": "IN_PROGRESS",
        "metadata": {"id": resource},
        "result": None,
        "started_at": stamp(request.account.now()),
        "completed_at": None,
        "_looks": 0,
        "_fails": fails,
        "_result": result,
    }
    request.store.put(doc["operation_id"], "operation", "", doc)
    return Answer(200, {"operation": doc})


def looked_at(request: Request) -> Answer:
    """An operation, asked for once more. One that is not known is refused as if it were somebody else's."""
    doc = request.store.get(request.id, "operation")
    if doc is None:
        raise forbidden()
    looks = doc["_looks"] + 1
    doc = {**doc, "_looks": looks}
    if looks >= 2:
        ended = {"completed_at": stamp(request.account.now())}
        failed = doc["_fails"]
        doc |= ended | (
            {"state": "FAILED", "result": failed}
            if failed
            else {"state": "SUCCEEDED", "result": doc["_result"]}
        )
    request.store.put(request.id, "operation", "", doc)
    return Answer(200, doc)


def public(document: Any) -> Any:
    """Without what is the project's own."""
    if isinstance(document, dict):
        return {key: public(value) for key, value in document.items() if not str(key).startswith("_")}
    return [public(each) for each in document] if isinstance(document, list) else document
