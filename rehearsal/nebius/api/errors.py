"""Nebius's errors: a gRPC status, and a ServiceError that says what it is about.

Source: proto nebius.common.v1 (error.proto, operation.proto).
"""

from __future__ import annotations

from typing import Any

from orch.rehearsal.calls import Refusal
from orch.rehearsal.store import Doc

STATUS = {
    "OK": 0,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}


class NebiusError(Refusal):
    """A refusal. `status` is the gRPC status; `detail` the case of ServiceError and its fields; `retry`: what
    the client is told to do."""

    def __init__(
        self,
        status: str,
        code: str,
        message: str,
        *,
        service: str = "compute",
        retry: str = "NOTHING",
        **detail: Doc,
    ) -> None:
        super().__init__(code, message)
        self.status, self.service, self.retry, self.detail = status, service, retry, detail

    def rpc_status(self) -> Doc:
        """As `google.rpc.Status`, for the answer's trailer and for operations."""
        if self.status in ("UNAUTHENTICATED", "UNAVAILABLE", "UNIMPLEMENTED"):
            return {"code": STATUS[self.status], "message": self.message}  # of the gateway, without details
        error = {"service": self.service, "code": self.code, "retry_type": self.retry, **self.detail}
        details = [{"@type": "type.googleapis.com/nebius.common.v1.ServiceError", **error}]
        return {"code": STATUS[self.status], "message": self.message, "details": details}


def not_found(resource_id: str, *, service: str = "compute") -> NebiusError:
    detail = {"resource_id": resource_id}
    message = f"{resource_id} not found"
    return NebiusError("NOT_FOUND", "NotFound", message, service=service, resource_not_found=detail)


def bad_request(field: str, message: str, *, service: str = "compute") -> NebiusError:
    detail = {"violations": [{"field": field, "message": message}]}
    text = f"invalid request: {field}: {message}"
    return NebiusError("INVALID_ARGUMENT", "BadRequest", text, service=service, bad_request=detail)


def bad_state(resource_id: str, message: str, *, service: str = "compute") -> NebiusError:
    detail = {"resource_id": resource_id, "message": message}
    return NebiusError(
        "FAILED_PRECONDITION", "BadResourceState", message, service=service, bad_resource_state=detail
    )


def already_exists(resource_id: str, name: str, *, service: str = "compute") -> NebiusError:
    detail = {"resource_id": resource_id}
    text = f"a resource named {name} already exists"
    return NebiusError(
        "ALREADY_EXISTS", "ResourceAlreadyExists", text, service=service, resource_already_exists=detail
    )


def over_quota(name: str, limit: int, requested: int) -> NebiusError:
    text = f"Quota limit exceeded: {name}"
    violation = {"quota": name, "limit": str(limit), "requested": str(requested), "message": text}
    detail = {"violations": [violation]}
    return NebiusError("RESOURCE_EXHAUSTED", "QuotaFailure", text, quota_failure=detail)


def no_capacity(type: str) -> NebiusError:
    violation = {"resource_type": type, "requested": "1", "message": "not enough resources"}
    return NebiusError(
        "RESOURCE_EXHAUSTED",
        "NotEnoughResources",
        "not enough resources",
        not_enough_resources={"violations": [violation]},
    )


def too_many_requests() -> NebiusError:
    return NebiusError(
        "RESOURCE_EXHAUSTED",
        "TooManyRequests",
        "too many requests",
        retry="CALL",
        too_many_requests={"violation": "requests per second"},
    )


def permission_denied(resource_id: str) -> NebiusError:
    return NebiusError(
        "PERMISSION_DENIED",
        "PermissionDenied",
        f"no permission on {resource_id}",
        service="iam",
        permission_denied={"resource_id": resource_id},
    )


def unauthenticated(why: str) -> NebiusError:
    return NebiusError("UNAUTHENTICATED", "Unauthenticated", why, service="iam")


def unavailable(why: str) -> NebiusError:
    return NebiusError("UNAVAILABLE", "Unavailable", why)


def injected(code: str, message: str) -> NebiusError:
    """A failure that a test asks for, by Nebius's name of it or by a gRPC status."""
    known: dict[str, Any] = {
        "QuotaFailure": lambda: over_quota("compute.instance.gpu.h100", 8, 16),
        "NotEnoughResources": lambda: no_capacity(message),
        "TooManyRequests": too_many_requests,
        "PermissionDenied": lambda: permission_denied(message),
        "UNAUTHENTICATED": lambda: unauthenticated(message),
        "UNAVAILABLE": lambda: unavailable(message),
    }
    if code in known:
        error: NebiusError = known[code]()
        return error
    status = code if code in STATUS else "INTERNAL"
    return NebiusError(status, "InternalError", message, internal_error={})
