"""The meaning of Nimbus's errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from orch.components.cloud_errors import Category, CategoryErrors, CategoryRefused

CODES: Mapping[str, Category] = {"sold_out": "capacity", "limit_reached": "quota", "no_such_thing": "gone"}
"""The meaning of each code in the body of a refusal. Capacity and quotas matter most: other places are tried
for the first, none for the second. Cite the source."""

_STATUSES: Mapping[int, Category] = {
    401: "credentials",
    403: "permission",
    404: "gone",
    409: "conflict",
    429: "rate",
}
HINTS: Mapping[Category, str] = {
    "capacity": "take another region or type",
    "credentials": "set `creds` of `nimbus` in orch.yml, or NIMBUS_API_KEY",
}
ERRORS = CategoryErrors("Nimbus", "the account", "nimbus", HINTS)


class NimbusRefused(CategoryRefused):
    """Nimbus did not answer, or refused to."""

    errors: ClassVar[CategoryErrors] = ERRORS


def category(status: int, code: str) -> Category:
    """Return the category of a refusal. `status`: of HTTP; `code`: of its body, empty if it has none."""
    if code in CODES:
        return CODES[code]
    return "transient" if status >= 500 else _STATUSES.get(status, "invalid")
