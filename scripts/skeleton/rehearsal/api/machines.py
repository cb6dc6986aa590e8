"""The life of a machine in the simulated account: capacity, quota, boot and end.

A machine boots for two looks. One that was deleted is shown as gone for a look, then it is not there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from orch.rehearsal.http_service import Request, stamp
from orch.rehearsal.newcloud.api.errors import invalid, no_capacity, not_there, over_quota
from orch.rehearsal.newcloud.data.tables import Kind, kinds, regions
from orch.rehearsal.store import Doc

KIND = "instance"
QUOTA = "machines"
"""The knob for how many machines the account may have."""


def free(request: Request, kind: Kind, region: str) -> bool:
    """Return whether a machine of a type can be had in a region."""
    known = request.account.knobs_now().capacity
    keys = (f"{kind.name}@{region}", kind.name, f"*@{region}")
    limit = next((known[key] for key in keys if key in known), None)
    held = [doc for doc in _held(request) if (doc["type"], doc["region"]) == (kind.name, region)]
    return region in kind.regions and (limit is None or len(held) < limit)


def _held(request: Request) -> list[Doc]:
    return [doc for doc in request.each(KIND) if doc["status"] != "gone"]


def launched(request: Request, name: str, type_name: str, region: str, user_data: str) -> Doc:
    """Create a machine. Raises NewcloudError."""
    kind = kinds().get(type_name)
    if kind is None or region not in regions():
        raise invalid(f"{type_name} in {region}")
    quota = request.account.knobs_now().quotas.get(QUOTA)
    if quota is not None and len(_held(request)) >= quota:
        raise over_quota()
    if not free(request, kind, region):
        raise no_capacity()
    number = request.store.count("id machine")
    doc: Doc = {
        "id": hashlib.sha256(f"{request.account.seed} machine {number}".encode()).hexdigest()[:16],
        "name": name,
        "type": type_name,
        "region": region,
        "status": "starting",
        "created": stamp(request.account.now()),
        "address": "",
        "public_address": "",
        "user_data": user_data,
        "looks": 0,
        "since": request.account.now(),
    }
    _put(request, doc)
    return doc


def there(request: Request) -> Iterator[Doc]:
    """Look at all machines once more, and yield those that are not gone."""
    for doc in list(request.each(KIND)):
        if (found := _seen(request, doc)) is not None:
            yield found


def found(request: Request) -> Doc:
    """Look at the machine of the request once more. Raises NewcloudError if it is gone."""
    doc = request.store.get(request.id, KIND)
    seen = None if doc is None else _seen(request, doc)
    if seen is None:
        raise not_there("the machine")
    return seen


def ended(request: Request, doc: Doc, status: str = "gone") -> None:
    """Power a machine off: `gone` soon, or `failed` with its host."""
    if doc["status"] not in ("gone", "failed"):
        request.account.note("dead", doc["id"])
    _put(request, {**doc, "status": status, "looks": 0, "since": request.account.now()})


def _seen(request: Request, doc: Doc) -> Doc | None:
    looks, knobs = doc["looks"] + 1, request.account.knobs_now()
    age = request.account.now() - doc["since"]
    doc = {**doc, "looks": looks}
    if doc["status"] == "gone" and looks >= 2 and age >= knobs.shutting_down_s:
        return None
    if doc["status"] == "starting" and looks >= 2 and age >= knobs.pending_s:
        number = request.store.count("address")
        low = f"{number // 250}.{number % 250 + 2}"
        # RFC 2544: public addresses of nobody.
        doc |= {"status": "running", "address": f"10.0.{low}", "public_address": f"198.19.{low}"}
        request.account.note("born", doc["id"])
    _put(request, doc)
    return doc


def _put(request: Request, doc: Doc) -> None:
    request.store.put(doc["id"], KIND, doc["region"], doc)
