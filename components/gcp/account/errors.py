"""The cloud's error codes: which of them another zone may mend, and what to do about the others.

The codes and their meaning are data: catalog/errors-gcp.csv.
"""

from __future__ import annotations

import re
from typing import cast

from orch.catalog.gcp.machines import gcp_codes
from orch.components.cloud_errors import CloudError, Kind

# `Error 403: … , quotaExceeded`, `Code: ZONE_RESOURCE_POOL_EXHAUSTED, Message: …`, `'code': 'STOCKOUT'`.
_IN_TEXT = (
    re.compile(r"Code:\s*['\"]?([A-Z][A-Z0-9_]{3,})\b"),
    re.compile(r"['\"]?code['\"]?\s*:\s*['\"]([A-Za-z][A-Za-z0-9_]{3,})['\"]"),
    re.compile(r"googleapi: Error \d+: .*?, ([a-z][A-Za-z]+)(?:\s|$)", re.DOTALL),
    re.compile(r"\breason['\"]?\s*[:=]\s*['\"]?([A-Za-z][A-Za-z_]{3,})\b"),
)
# The provider tells of a failed operation by its message alone, and some codes say less than their text.
# Source: as in catalog/errors-gcp.csv; terraform-provider-google, ComputeOperationError.
_NO_ROOM = "does not have enough resources available|is currently unavailable in the|resource pool exhausted"
_IN_WORDS = (
    (re.compile(_NO_ROOM, re.I), "ZONE_RESOURCE_POOL_EXHAUSTED"),
    (re.compile(r"Machine type with name .* does not exist in zone", re.I), "UNSUPPORTED_OPERATION"),
    (re.compile(r"Quota '\w+' exceeded", re.I), "QUOTA_EXCEEDED"),
    # Filestore answers 429 for a quota that is used up, without a reason: another try repeats it.
    # Source: Filestore, "Quotas"; terraform-provider-google, issues 7940 and 21241.
    (re.compile(r"Quota limit '\w+' has been exceeded|Quota '\w+' exhausted", re.I), "FILESTORE_QUOTA"),
    (re.compile(r"Required '[\w.]+' permission"), "PERMISSION_DENIED"),
    (re.compile(r"Internal error\. Please try again", re.I), "INTERNAL_ERROR"),
    (re.compile(r"Operation rate exceeded", re.I), "RESOURCE_OPERATION_RATE_EXCEEDED"),
    (re.compile(r"is already being used by '"), "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"),
)
_BY_STATUS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RATE_LIMIT_EXCEEDED"}
_STATUS = re.compile(r"googleapi: Error (\d{3})\b")


def by_code(code: str, message: str = "") -> CloudError:
    """What a code means. One that is not known stops: trying elsewhere would repeat it."""
    row = gcp_codes().get(code)
    kind = cast(Kind, row.kind) if row else "unknown"
    hint = row.hint if row else None
    words = _by_words(message) if kind in ("parameter", "unknown", "throttle") else None
    if words is not None and gcp_codes()[words].kind in ("capacity", "quota"):
        kind, hint = cast(Kind, gcp_codes()[words].kind), gcp_codes()[words].hint
    return CloudError("GCP", "the project", code, kind, message, hint)


def by_status(status: int, message: str = "") -> CloudError:
    """What an HTTP status means where nothing more is told."""
    return by_code(_BY_STATUS.get(status, "backendError" if status >= 500 else "badRequest"), message)


def read(text: str) -> CloudError | None:
    """The cloud's error in what a provider said; None when there is none in it."""
    for pattern in _IN_TEXT:
        for code in pattern.findall(text):
            if code in gcp_codes():
                return by_code(code, text.strip())
    if words := _by_words(text):
        return by_code(words, text.strip())
    if match := _STATUS.search(text):
        return by_status(int(match[1]), text.strip())
    return None


def _by_words(text: str) -> str | None:
    return next((code for pattern, code in _IN_WORDS if pattern.search(text)), None)
