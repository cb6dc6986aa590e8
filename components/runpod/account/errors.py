"""What errors of RunPod mean. Pure.

A 400 is a broken rule or missing capacity: its detail alone tells which. Source: runpod/docs
api-reference-v2/openapi.json, "Which failures are worth retrying"; details of missing capacity: issues of
runpodctl 189, runpod-python 297, dstack 3910, and what POST /v2/clusters answered in August 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from orch.components.cloud_errors import Category, CategoryErrors, CategoryRefused

STATUSES: Mapping[int, Category] = {
    401: "credentials",
    402: "quota",
    403: "permission",
    404: "gone",
    409: "conflict",
    422: "invalid",
    429: "rate",
}
# By the detail, where the status leaves it open: 400, 409, and errors of GraphQL, which are HTTP 200.
_DETAILS: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile(r"insufficient (balance|funds)|spend(ing)? limit|not enough credits?", re.I), "quota"),
    (
        re.compile(
            r"insufficient resources|no longer any instances|does not have the resources|enough disk space"
            r"|cluster creation failed|no (available )?(capacity|machines|instances)|could not be placed",
            re.I,
        ),
        "capacity",
    ),
    (re.compile(r"\bin use\b|still attached", re.I), "conflict"),
    (re.compile(r"not found|does not exist", re.I), "gone"),
    (re.compile(r"unauthorized|unauthenticated|invalid api key", re.I), "credentials"),
)
HINTS: Mapping[Category, str] = {
    "quota": "raise the spend limit, or the balance, in RunPod's console: Billing",
    "credentials": "set `creds` of `runpod` in orch.yml, or RUNPOD_API_KEY",
    "permission": "the API key needs read and write access (console: Settings, API Keys)",
}
ERRORS = CategoryErrors("RunPod", "the account", "runpod", HINTS)


class RunpodRefused(CategoryRefused):
    """RunPod did not answer, or refused to."""

    errors: ClassVar[CategoryErrors] = ERRORS


def category(status: int, detail: str) -> Category:
    """What a refusal is. `status`: of HTTP, 200 for errors of GraphQL; `detail`: what people read."""
    if status >= 500:
        return "transient"
    if status in (200, 400, 409):
        for pattern, meaning in _DETAILS:
            if pattern.search(detail):
                return meaning
    return STATUSES.get(status, "invalid")
