"""Operations: the responses of changes. An operation is completed when it is returned."""

from __future__ import annotations

from orch.rehearsal.gcp.api.methods import Request, method
from orch.rehearsal.store import Doc


def get(request: Request) -> Doc:
    return request.thing("operation", request.path("operations", request.words["operation"]))


def each(request: Request) -> Doc:
    return request.page([doc for _, doc in request.each("operation", request.scope)], "operation")


for _kind, _path in (
    ("globalOperations", "global/operations"),
    ("regionOperations", "regions/{region}/operations"),
    ("zoneOperations", "zones/{zone}/operations"),
):
    method(f"{_kind}.get", "GET", f"{_path}/{{operation}}")(get)
    method(f"{_kind}.wait", "POST", f"{_path}/{{operation}}/wait", mutates=False)(get)
    method(f"{_kind}.list", "GET", _path)(each)
