"""The cloud's error codes: which of them another zone may mend, and what to do about the others.

The codes and their meaning are data: catalog/errors-gcp.csv.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from orch.catalog.shapes import gcp_codes

Kind = Literal["capacity", "quota", "permission", "credentials", "parameter", "throttle", "gone", "unknown"]
Verdict = Literal["next", "stop", "again"]

# What to do with each kind: try the next candidate, stop, or do the same again.
VERDICTS: dict[Kind, Verdict] = {
    "capacity": "next",
    "quota": "stop",
    "permission": "stop",
    "credentials": "stop",
    "parameter": "stop",
    "throttle": "again",
    "gone": "again",
    "unknown": "stop",
}
CODES: dict[Kind, str] = {
    "capacity": "ORCH325",
    "quota": "ORCH313",
    "permission": "ORCH304",
    "credentials": "ORCH303",
    "parameter": "ORCH357",
    "throttle": "ORCH358",
    "gone": "ORCH359",
    "unknown": "ORCH356",
}
_MEANING = {
    "capacity": "GCP has no capacity for this here and now",
    "quota": "a quota of the project is used up",
    "permission": "GCP does not let these credentials do this",
    "credentials": "GCP does not accept the credentials",
    "parameter": "GCP refuses a parameter",
    "throttle": "GCP asks to come back later",
    "gone": "something is still in use, or not there yet",
    "unknown": "GCP refuses this",
}
# `Error 403: … , quotaExceeded`, `Code: ZONE_RESOURCE_POOL_EXHAUSTED, Message: …`, `'code': 'STOCKOUT'`.
_IN_TEXT = (
    re.compile(r"Code:\s*['\"]?([A-Z][A-Z0-9_]{3,})\b"),
    re.compile(r"['\"]?code['\"]?\s*:\s*['\"]([A-Za-z][A-Za-z0-9_]{3,})['\"]"),
    re.compile(r"googleapi: Error \d+: .*?, ([a-z][A-Za-z]+)(?:\s|$)", re.DOTALL),
    re.compile(r"\breason['\"]?\s*[:=]\s*['\"]?([A-Za-z][A-Za-z_]{3,})\b"),
)
# Errors whose code says less than their text. Source: as in catalog/errors-gcp.csv.
_NO_ROOM = re.compile(
    r"does not have enough resources available|is currently unavailable in the|resource pool exhausted", re.I
)
_NOT_SOLD = re.compile(r"Machine type with name .* does not exist in zone", re.I)
_BY_STATUS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RATE_LIMIT_EXCEEDED"}
_STATUS = re.compile(r"googleapi: Error (\d{3})\b")


@dataclass(frozen=True)
class CloudError:
    """An error of the cloud. `code` is the cloud's, `orch` ours; `message` is what the cloud said."""

    code: str
    kind: Kind
    message: str
    hint: str | None

    @property
    def verdict(self) -> Verdict:
        return VERDICTS[self.kind]

    @property
    def orch(self) -> str:
        return CODES[self.kind]

    @property
    def meaning(self) -> str:
        return _MEANING[self.kind]


def by_code(code: str, message: str = "") -> CloudError:
    """What a code means. One that is not known stops: trying elsewhere would repeat it."""
    row = gcp_codes().get(code)
    kind = cast(Kind, row.kind) if row else "unknown"
    hint = row.hint if row else None
    if kind in ("parameter", "unknown", "throttle") and (
        _NO_ROOM.search(message) or _NOT_SOLD.search(message)
    ):
        kind, hint = "capacity", None
    return CloudError(code, kind, message, hint)


def by_status(status: int, message: str = "") -> CloudError:
    """What an HTTP status means where nothing more is told."""
    return by_code(_BY_STATUS.get(status, "backendError" if status >= 500 else "badRequest"), message)


def read(text: str) -> CloudError | None:
    """The cloud's error in what a provider said; None when there is none in it."""
    for pattern in _IN_TEXT:
        for code in pattern.findall(text):
            if code in gcp_codes():
                return by_code(code, text.strip())
    if match := _STATUS.search(text):
        return by_status(int(match[1]), text.strip())
    return None
