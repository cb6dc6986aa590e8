"""The routes of the REST API by path, and what all kinds of resources do alike. Actions are operationIds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from orch.rehearsal.http_service import Answer, Request, Routes
from orch.rehearsal.runpod.api.errors import RunpodError, not_found
from orch.rehearsal.store import Doc

PAGE = 100
MOST_PAGE = 1000


def _missing(methods: Sequence[str]) -> RunpodError:
    if not methods:
        return not_found("route")
    text = "The requested method is not allowed for this path."
    return RunpodError(405, text, headers={"Allow": ", ".join(methods)})


route = Routes("orch.rehearsal.runpod.api", ("catalog", "clusters", "graphql", "pods", "volumes"), _missing)


# -- resources ----------------------------------------------------------------------------------------------


def new_id(request: Request, kind: str) -> str:
    number = request.store.count(f"id {kind}")
    return hashlib.sha256(f"{request.account.seed} {kind} {number}".encode()).hexdigest()[:14]


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
