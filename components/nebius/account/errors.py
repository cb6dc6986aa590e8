"""What errors of Nebius mean. Pure.

An error is a gRPC status with a ServiceError that says what it is about: RESOURCE_EXHAUSTED alone may be a
quota, missing capacity or too many requests. Source: nebius/api common/v1/error.proto, operation.proto.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from orch.components.cloud_errors import Category, CategoryErrors

# By the case of ServiceError.details.
DETAILS: Mapping[str, Category] = {
    "not_enough_resources": "capacity",
    "quota_failure": "quota",
    "permission_denied": "permission",
    "too_many_requests": "rate",
    "resource_already_exists": "conflict",
    "resource_conflict": "conflict",
    "operation_conflict": "conflict",
    "operation_aborted": "conflict",
    "bad_resource_state": "conflict",
    "resource_not_found": "gone",
    "bad_request": "invalid",
    "out_of_range": "invalid",
    "internal_error": "transient",
}
# By the gRPC status, where there is no such detail. RESOURCE_EXHAUSTED is then read by its message.
STATUSES: Mapping[str, Category] = {
    "UNAUTHENTICATED": "credentials",
    "PERMISSION_DENIED": "permission",
    "NOT_FOUND": "gone",
    "ALREADY_EXISTS": "conflict",
    "ABORTED": "conflict",
    "FAILED_PRECONDITION": "conflict",
    "INVALID_ARGUMENT": "invalid",
    "OUT_OF_RANGE": "invalid",
    "UNIMPLEMENTED": "invalid",
    "RESOURCE_EXHAUSTED": "rate",
    "UNAVAILABLE": "transient",
    "DEADLINE_EXCEEDED": "transient",
    "INTERNAL": "transient",
    "UNKNOWN": "transient",
}
HINTS: Mapping[Category, str] = {
    "quota": "ask for more in the console: Limits, Quotas; or use another region",
    "credentials": "set `creds` of `nebius` in orch.yml, or NEBIUS_IAM_TOKEN",
    "permission": "the service account needs the role `editor` on the project",
}
_MESSAGES: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile(r"quota", re.I), "quota"),  # dstack core/backends/nebius: "Quota limit exceeded"
    (re.compile(r"not enough resources", re.I), "capacity"),
)
ERRORS = CategoryErrors("Nebius", "the tenant", "nebius", HINTS)


def category(status: str, detail: str | None, message: str = "") -> Category:
    """What an error is. `status`: gRPC's name; `detail`: the case of ServiceError.details, None without."""
    if detail is not None and detail in DETAILS:
        return DETAILS[detail]
    if status == "RESOURCE_EXHAUSTED":
        for pattern, meaning in _MESSAGES:
            if pattern.search(message):
                return meaning
    return STATUSES.get(status, "transient")
