"""The methods of the services, by name, and what all kinds of resources do alike.

Documents are messages as JSON with the names of the proto; what begins with `_` is the account's own.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from orch.rehearsal.nebius.api.errors import NebiusError, already_exists, bad_request, not_found
from orch.rehearsal.store import Doc, Store

if TYPE_CHECKING:
    from orch.rehearsal.account import SimulatedAccount

PAGE = 50
"""Items of a list that names no `page_size`."""

POLLS = 2
"""How often an operation is asked for until it has ended, at least."""


@dataclass(frozen=True)
class Request:
    """One call of a method. `service`: full name of it."""

    account: SimulatedAccount
    service: str
    method: str
    body: Doc

    @property
    def store(self) -> Store:
        return self.account.store

    @property
    def api(self) -> str:
        """The part of the service's name that errors bear: compute."""
        return self.service.split(".")[1]

    @property
    def parent(self) -> str:
        return str((self.body.get("metadata") or self.body).get("parent_id") or "")

    def project(self) -> Doc:
        """The project that the request is for. Raises NebiusError."""
        if not self.parent:
            raise bad_request("metadata.parent_id", "required", service=self.api)
        project = self.store.get(self.parent, "project")
        if project is None:
            raise NebiusError(
                "PERMISSION_DENIED",
                "PermissionDenied",
                f"no permission on {self.parent}",
                service="iam",
                permission_denied={"resource_id": self.parent},
            )
        return project

    @property
    def region(self) -> str:
        return str(self.project()["spec"]["region"])


Function = Callable[[Request], Doc]
_METHODS: dict[tuple[str, str], Function] = {}


def method(service: str, name: str) -> Callable[[Function], Function]:
    """Register what a method of a service does."""

    def register(function: Function) -> Function:
        _METHODS[f"nebius.{service}", name] = function
        return function

    return register


@cache
def all_methods() -> dict[tuple[str, str], Function]:
    for name in ("identity", "vpc", "compute", "instances", "billing"):
        import_module(f"orch.rehearsal.nebius.api.{name}")
    return _METHODS


# -- resources ----------------------------------------------------------------------------------------------


def new_id(request: Request, prefix: str) -> str:
    number = request.store.count(f"id {prefix}")
    digest = hashlib.sha256(f"{request.account.seed} {prefix} {number}".encode()).hexdigest()
    return f"{prefix}-e00{digest[:16]}"


def checked_name(request: Request, kind: str) -> str:
    """The name of what is to be made: given, and not taken in this project."""
    name = str(request.body["metadata"].get("name") or "")
    if not name:
        raise bad_request("metadata.name", "required", service=request.api)
    taken = request.store.find(kind, f"{request.parent}/{name}")
    if taken is not None:
        raise already_exists(taken, name, service=request.api)
    return name


def make(request: Request, kind: str, prefix: str, status: Doc, **own: Any) -> tuple[str, Doc]:
    """Add a resource of the request's metadata and spec: its id and document."""
    name = checked_name(request, kind)
    resource_id = new_id(request, prefix)
    metadata = {
        **request.body["metadata"],
        "id": resource_id,
        "resource_version": "1",
        "created_at": stamp(request.account.now()),
    }
    doc = {"metadata": metadata, "spec": request.body.get("spec") or {}, "status": status, **own}
    request.store.put(resource_id, kind, request.region, doc, f"{request.parent}/{name}")
    return resource_id, doc


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def existing(request: Request, kind: str, resource_id: str) -> Doc:
    doc = request.store.get(resource_id, kind)
    if doc is None:
        raise not_found(resource_id, service=request.api)
    return doc


def put(request: Request, kind: str, doc: Doc) -> None:
    """Write a changed document."""
    request.store.put(doc["metadata"]["id"], kind, "", doc)  # its region stays


def named(request: Request, kind: str) -> Doc:
    request.project()
    name = str(request.body.get("name") or "")
    resource_id = request.store.find(kind, f"{request.parent}/{name}")
    if resource_id is None:
        raise not_found(name, service=request.api)
    return existing(request, kind, resource_id)


def of_parent(request: Request, kind: str) -> Iterator[Doc]:
    for _, doc in request.store.each(kind):
        if doc["metadata"].get("parent_id") == request.parent:
            yield doc


def page(request: Request, items: list[Doc]) -> Doc:
    """One page of a list."""
    start = int(request.body.get("page_token") or 0)
    size = int(request.body.get("page_size") or PAGE)
    rest = {"next_page_token": str(start + size)} if start + size < len(items) else {}
    return {"items": items[start : start + size], **rest}


# -- operations ---------------------------------------------------------------------------------------------


def operation(request: Request, resource_id: str, *, error: NebiusError | None = None, **own: Any) -> Doc:
    """An operation that has begun. `error`: what it will end with."""
    operation_id = new_id(request, "operation")
    doc = {
        "id": operation_id,
        "resource_id": resource_id,
        "description": f"{request.service.rpartition('.')[2]}.{request.method}",
        "created_at": stamp(request.account.now()),
        "created_by": "serviceaccount-e00orchrehearsal",
        "_polls": 0,
        "_service": request.service,
        "_parent": request.parent,
        "_end": error.rpc_status() if error else {"code": 0},
        **own,
    }
    request.store.put(operation_id, "operation", "", doc)
    return doc


def polled(request: Request, doc: Doc, *, ready: bool = True) -> Doc:
    """An operation, asked for once more. It ends when it was asked for often enough, and is `ready`."""
    if doc.get("finished_at"):
        return doc
    doc = {**doc, "_polls": doc["_polls"] + 1}
    if ready and doc["_polls"] >= POLLS:
        doc |= {"finished_at": stamp(request.account.now()), "status": doc["_end"]}
    request.store.put(doc["id"], "operation", "", doc)
    return doc
