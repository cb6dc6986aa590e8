"""What errors of Crusoe mean. Pure.

A refusal is an HTTP status with a code and a message that people read; an operation that failed has the same
two. Which words mean what is a table. Source: crusoecloud/client-go swagger/v1/swagger.json;
crusoecloud/terraform-provider-crusoe internal/common/util.go (`out_of_stock`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from orch.components.cloud_errors import Category, CategoryErrors, CategoryRefused

STATUSES: Mapping[int, Category] = {
    401: "credentials",
    403: "permission",
    404: "gone",
    409: "conflict",
    422: "invalid",
    429: "rate",
}
# By code and message, where the status leaves it open: 400, 409, and operations, which have none.
_WORDS: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile(r"out.of.stock|insufficient capacity|no capacity", re.I), "capacity"),
    (re.compile(r"quota", re.I), "quota"),
    (re.compile(r"\bin use\b|still (has|attached|being)|not empty|already exists", re.I), "conflict"),
    (re.compile(r"not.found|does not exist", re.I), "gone"),
    (re.compile(r"internal_error|unavailable|timeout", re.I), "transient"),
)
HINTS: Mapping[Category, str] = {
    "quota": "ask Crusoe's support for more; a quota is a ceiling, and promises no machines",
    "capacity": "take another location or type, or a reservation: what has none may be out of stock for long",
    "credentials": "set `creds` of `crusoe` in orch.yml, or CRUSOE_ACCESS_KEY_ID and CRUSOE_SECRET_KEY",
    "permission": "the access key's user needs to be an admin or a member of the project",
}
ERRORS = CategoryErrors("Crusoe", "the project", "crusoe", HINTS)


class CrusoeRefused(CategoryRefused):
    """Crusoe did not answer, or refused to."""

    errors: ClassVar[CategoryErrors] = ERRORS


def category(status: int | None, text: str) -> Category:
    """What a refusal is. `status`: of HTTP, None for an operation that failed; `text`: code and message."""
    if status is not None and status >= 500:
        return "transient"
    if status in (None, 400, 409):
        for pattern, meaning in _WORDS:
            if pattern.search(text):
                return meaning
    return STATUSES.get(status or 0, "invalid")


def plain(message: str) -> str:
    """What people read of `rpc error: code = X desc = Y`: Y. Source: terraform-provider-crusoe, the same."""
    return message.rpartition(" desc = ")[2]
