"""What errors of Nebius mean. Pure.

An error is a gRPC status with a ServiceError that says what it is about: RESOURCE_EXHAUSTED alone may be a
quota, missing capacity or too many requests. Source: nebius/api common/v1/error.proto, operation.proto.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from orch.components.cloud_errors import Category, CategoryErrors, CloudRefused

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


class NebiusRefused(CloudRefused):
    """Nebius did not answer, or refused to. `category` says what it is about."""

    category: Category

    def __init__(self, what: str, meaning: Category, message: str) -> None:
        error = ERRORS.error(meaning, message)
        super().__init__(
            f"cannot {what}: {error.meaning}",
            error=error,
            detail=f"{error.code}: {message}",
            hint=error.hint,
            code=error.orch,
        )
        self.category, self.message = meaning, message


def translated(what: str, act: Callable[[], Any]) -> Any:
    from nebius.aio.service_error import RequestError
    from nebius.base.error import SDKError

    try:
        return act()
    except RequestError as error:
        raise refusal_of(what, error.status) from error
    except SDKError as error:
        raise NebiusRefused(what, "transient", str(error)) from error


def refusal_of(what: str, status: Any) -> NebiusRefused:
    from nebius.aio.service_error import RequestStatusExtended

    if not isinstance(status, RequestStatusExtended):  # of a list: its details are not read yet
        plain: Any = status
        status = RequestStatusExtended.from_rpc_status(
            plain.to_rpc_status(), request_id="", trace_id="", registry=plain.registry
        )
    details = [each.details.field for each in status.service_errors if each.details is not None]
    message = status.message or status.code.name
    meaning = category(status.code.name, details[0] if details else None, message)
    extra = [_violation(each) for each in status.service_errors if each.details is not None]
    return NebiusRefused(what, meaning, "; ".join(filter(None, [message, *extra])))


def _violation(error: Any) -> str:
    """What a quota lacks: name, limit and what was asked for."""
    if error.details.field != "quota_failure":
        return ""
    rows = error.details.value.violations
    return ", ".join(f"{row.quota} is {row.limit}, this needs {row.requested}" for row in rows)
