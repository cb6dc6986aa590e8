"""The queries of GraphQL that REST v2 has no route for: the account's money, and prices of clusters.

Refusals are HTTP 200 with `errors`. A query is told by the field that it asks for; selections are not cut
out of the answer. Source: dstack core/backends/runpod/api_client.py, gpuhunt providers/runpod.py @3584151.
"""

from __future__ import annotations

import re

from orch.rehearsal.http_service import Answer, Request
from orch.rehearsal.runpod.api.pods import money, spending
from orch.rehearsal.runpod.api.routes import route
from orch.rehearsal.runpod.data.tables import gpus
from orch.rehearsal.store import Doc

USER = "user_2orchRehearsal0000000000"
"""The user of the first account."""

_FIELD = re.compile(r"\{\s*(\w+)")


@route("POST", "/graphql", "graphql")
def graphql(request: Request) -> Answer:
    body: Doc = request.body if isinstance(request.body, dict) else {}
    found = _FIELD.search(str(body.get("query") or ""))
    name = found.group(1) if found else ""
    if name == "myself":
        balance, limit = money(request)
        myself = {
            "id": request.account.identity(USER),
            "clientBalance": balance,
            "currentSpendPerHr": spending(request),
            "spendLimit": limit,
        }
        return Answer(200, {"data": {"myself": myself}})
    if name == "gpuTypes":
        rows = [
            {
                "id": each.id,
                "clusterPrice": each.cluster_price if each.cluster else None,
                "maxGpuCount": each.max_count,
                "nodeGroupDatacenters": [{"id": center} for center in each.data_centers if each.cluster],
            }
            for each in gpus().values()
        ]
        return Answer(200, {"data": {"gpuTypes": rows}})
    message = f'Cannot query field "{name}" on type "Query".'
    return Answer(
        200, {"errors": [{"message": message, "extensions": {"code": "GRAPHQL_VALIDATION_FAILED"}}]}
    )
