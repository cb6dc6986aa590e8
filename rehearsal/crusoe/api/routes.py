"""The routes of the REST API by path, and what all kinds of resources do alike: names, operations."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from orch.rehearsal.crusoe.api.errors import CrusoeError, forbidden, not_found
from orch.rehearsal.http_service import Answer, Request, Route, Routes, stamp
from orch.rehearsal.store import Doc

PROJECT = "11111111-2222-4333-8444-555555555555"
ORGANIZATION = "66666666-7777-4888-8999-000000000000"


def _missing(methods: Sequence[str]) -> CrusoeError:
    return CrusoeError(405, "method_not_allowed") if methods else not_found("route")


route = Routes(
    "orch.rehearsal.crusoe.api", ("catalog", "networks", "storage", "instances"), _missing, prefix="/v1"
)
"""`{p}` of a path is the project."""


def matching(method: str, path: str, project: str) -> tuple[Route, str]:
    """The route of a path, and the id in it. Raises CrusoeError, also for a project of somebody else."""
    found, parts = route.matching(method, path)
    if parts.get("p", project) != project:
        raise forbidden()
    return found, parts.get("id", "")


def organization(request: Request) -> str:
    """The id of the organization that the project is of."""
    return request.account.identity(ORGANIZATION)


# -- resources ----------------------------------------------------------------------------------------------


def new_id(request: Request, kind: str) -> str:
    number = request.store.count(f"id {kind}")
    digest = hashlib.sha256(f"{request.account.seed} {kind} {number}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


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
