"""What errors of Lambda mean. Pure.

A refusal has a code that machines read; its words may change. What a code means is a table. Source: Lambda
Cloud API 1.10, schemas ApiError…; that a quota is checked where a type shows stock: kubernetes/k8s.io#9360.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from orch.components.cloud_errors import Category, CategoryErrors, CategoryRefused

CODES: Mapping[str, Category] = {
    "instance-operations/launch/insufficient-capacity": "capacity",
    "global/quota-exceeded": "quota",
    "global/invalid-api-key": "credentials",
    "global/account-inactive": "permission",
    "global/invalid-address": "permission",
    "global/forbidden": "permission",
    "global/invalid-parameters": "invalid",
    "instance-operations/launch/file-system-in-wrong-region": "invalid",
    "global/object-does-not-exist": "gone",
    "global/not-found": "gone",
    "global/duplicate": "conflict",
    "global/conflict": "conflict",
    "filesystems/filesystem-in-use": "conflict",
    "firewall-rulesets/firewall-ruleset-in-use": "conflict",
    "global/internal-error": "transient",
}
_STATUSES: Mapping[int, Category] = {
    401: "credentials",
    403: "permission",
    404: "gone",
    409: "conflict",
    429: "rate",
}
HINTS: Mapping[Category, str] = {
    "quota": "ask Lambda's support for more; a quota is a ceiling, and promises no instances",
    "capacity": "take another region or type: `orch offers refresh lambda` tells what there is now",
    "credentials": "set `creds` of `lambda` in orch.yml, or LAMBDA_API_KEY",
    "permission": "look at the account in Lambda's console: its e-mail and payment have to be verified",
}
ERRORS = CategoryErrors("Lambda", "the account", "lambda", HINTS)


class LambdaRefused(CategoryRefused):
    """Lambda did not answer, or refused to."""

    errors: ClassVar[CategoryErrors] = ERRORS


def category(status: int, code: str) -> Category:
    """What a refusal is. `status`: of HTTP; `code`: of its body, empty without."""
    if code in CODES:
        return CODES[code]
    if status >= 500 or code.startswith("provider/"):
        return "transient"
    return _STATUSES.get(status, "invalid")
