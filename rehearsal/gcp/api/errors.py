"""Compute Engine's errors: an HTTP error at once, or an error of the operation later.

An HTTP error has a `reason` ("notFound"), an operation a code in capitals ("QUOTA_EXCEEDED"). Sources:
rehearsal/README.md, "GCP".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orch.rehearsal.calls import Refusal

if TYPE_CHECKING:
    from orch.rehearsal.store import Doc

STATUS = {
    "badRequest": 400,
    "invalid": 400,
    "required": 400,
    "invalidUsage": 400,
    "resourceInUseByAnotherResource": 400,
    "resourceNotReady": 400,
    "forbidden": 403,
    "quotaExceeded": 403,
    "rateLimitExceeded": 403,
    "accessNotConfigured": 403,
    "notFound": 404,
    "alreadyExists": 409,
    "conditionNotMet": 412,
    "internalError": 500,
    "backendError": 503,
}

STATUS_NAME = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}

OPERATION = {
    "QUOTA_EXCEEDED": (403, "FORBIDDEN"),
    "ZONE_RESOURCE_POOL_EXHAUSTED": (503, "SERVICE UNAVAILABLE"),
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": (503, "SERVICE UNAVAILABLE"),
    "CONDITION_NOT_MET": (412, "PRECONDITION FAILED"),
    "RESOURCE_NOT_FOUND": (404, "NOT FOUND"),
    "RESOURCE_ALREADY_EXISTS": (409, "CONFLICT"),
    "INTERNAL_ERROR": (500, "INTERNAL SERVER ERROR"),
}
"""Code of a failed operation -> httpErrorStatusCode, httpErrorMessage; others are 400, BAD REQUEST."""


class GcpError(Refusal):
    """One error. `code` is a reason ("notFound"), or an operation's code in capitals.

    `answer`: the failed operation, once the account has stored it.
    """

    def __init__(self, code: str, message: str, *, details: Sequence[Doc] = (), **more: Any) -> None:
        super().__init__(code, message)
        self.details = tuple(details)
        self.more = more
        self.answer: Doc | None = None

    @property
    def in_operation(self) -> bool:
        return self.code.isupper()

    @property
    def status(self) -> int:
        """The HTTP status of the error."""
        return OPERATION.get(self.code, (400, ""))[0] if self.in_operation else STATUS.get(self.code, 400)

    def body(self) -> Doc:
        """The body of the HTTP response."""
        domain = "usageLimits" if self.code in {"quotaExceeded", "rateLimitExceeded"} else "global"
        return {
            "error": {
                "code": self.status,
                "message": self.message,
                "errors": [{"message": self.message, "domain": domain, "reason": self.code}],
                "status": STATUS_NAME.get(self.status, "UNKNOWN"),
            }
        }

    def operation(self) -> Doc:
        """The error as a failed operation has it."""
        status, text = OPERATION.get(self.code, (400, "BAD REQUEST"))
        one: dict[str, Any] = {"code": self.code, "message": self.message, **self.more}
        if self.details:
            one["errorDetails"] = list(self.details)
        return {"error": {"errors": [one]}, "httpErrorStatusCode": status, "httpErrorMessage": text}


def not_found(path: str) -> GcpError:
    return GcpError("notFound", f"The resource '{path}' was not found")


def invalid(field: str, value: object, why: str) -> GcpError:
    text = str(value).lower() if isinstance(value, bool) else value
    return GcpError("invalid", f"Invalid value for field '{field}': '{text}'. {why}")


def required(field: str) -> GcpError:
    return GcpError("required", f"Required field '{field}' not specified")


def in_use(kind: str, path: str, by: str, *, late: bool = False) -> GcpError:
    """The error for a resource that another one uses. `late`: the operation reports it, not the call."""
    code = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE" if late else "resourceInUseByAnotherResource"
    return GcpError(code, f"The {kind} resource '{path}' is already being used by '{by}'")


def quota_exceeded(metric: str, limit: float, location: str) -> GcpError:
    """The error of an operation that exceeds a quota. `location`: a region or "global"."""
    there = "globally" if location == "global" else f"in region {location}"
    dimension = {"global": "global"} if location == "global" else {"region": location}
    name, limit_name, family = metric, metric.replace("_", "-"), metric.lower()
    if metric in FAMILIES:
        spot = "PREEMPTIBLE_" if metric.startswith("PREEMPTIBLE_") else ""
        gpu = metric.removeprefix("PREEMPTIBLE_").removesuffix("_GPUS")
        name, dimension = f"{spot}GPUS_PER_GPU_FAMILY", {**dimension, "gpu_family": gpu}
        limit_name, family = name.replace("_", "-"), name.lower()
    info = {
        "metricName": f"compute.googleapis.com/{family}",
        "limitName": f"{limit_name}-per-project{'' if location == 'global' else '-region'}",
        "dimensions": dimension,
        "limit": float(limit),
    }
    text = f"Quota '{name}' exceeded.  Limit: {float(limit)} {there}."
    return GcpError("QUOTA_EXCEEDED", text, details=[{"quotaInfo": info}])


FAMILIES = frozenset(
    f"{spot}NVIDIA_{gpu}_GPUS"
    for spot in ("", "PREEMPTIBLE_")
    for gpu in ("H100_MEGA", "H200", "B200", "GB200", "GB300")
)
"""GPUs whose quota is counted per GPU family: https://cloud.google.com/compute/resource-usage#gpu_quota"""
