"""What time has done by the next call: runs that are over, resize requests that there is room for."""

from __future__ import annotations

from orch.rehearsal.gcp.api.compute import instances, resize_requests
from orch.rehearsal.gcp.api.methods import Request


def settle(request: Request) -> None:
    ends: dict[str, float] = request.store.meta("ends") or {}
    over = [path for path, at in ends.items() if request.cloud.now() >= at]
    if over:
        request.store.put_meta("ends", {path: at for path, at in ends.items() if path not in over})
        for path in over:
            doc = request.store.get(path, "instance")
            if doc is not None:
                instances.end(request, path, doc)
    resize_requests.retry(request)
