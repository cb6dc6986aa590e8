"""The routes of the REST API by path, and what all kinds of resources do alike."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from orch.rehearsal.http_service import Answer, Request, Routes
from orch.rehearsal.lambda_.api.errors import LambdaError, no_route, not_there
from orch.rehearsal.lambda_.data.tables import REGIONS
from orch.rehearsal.store import Doc


def _missing(methods: Sequence[str]) -> LambdaError:
    return LambdaError(405, "global/method-not-allowed", "Method not allowed.") if methods else no_route()


route = Routes(
    "orch.rehearsal.lambda_.api",
    ("instances", "resources"),
    _missing,
    prefix="/api/v1",
)


def told(data: object) -> Answer:
    """An answer in its envelope."""
    return Answer(200, {"data": data})


def region_of(name: str) -> Doc:
    return {"name": name, "description": REGIONS.get(name, name)}


def new_id(request: Request, kind: str) -> str:
    number = request.store.count(f"id {kind}")
    return hashlib.sha256(f"{request.account.seed} {kind} {number}".encode()).hexdigest()[:32]


def existing(request: Request, kind: str, resource: str | None = None) -> Doc:
    """A resource by its id, that of the path without one. Raises LambdaError."""
    doc = request.store.get(request.id if resource is None else resource, kind)
    if doc is None:
        raise not_there(f"Specified {kind}")
    return doc
