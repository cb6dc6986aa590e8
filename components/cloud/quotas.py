"""Quotas that a plan is checked against, as far as the credentials may read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from orch.components.cloud_errors import CODES, CloudRefused
from orch.spec.findings import Finding, Severity

Quota = TypeVar("Quota")


def if_readable(unread: list[str], read: Callable[[], Quota]) -> Quota | None:
    """Return a quota, None if the cloud does not tell it; then the reason is added to `unread`.

    A cloud checks its quotas itself when something is created. Raises CloudRefused for refused credentials.
    """
    try:
        return read()
    except CloudRefused as refused:
        if refused.code == CODES["credentials"]:
            raise
        unread.append(f"{refused.summary}; {refused.detail}" if refused.detail else refused.summary)
        return None


def unread_findings(unread: Iterable[str]) -> Iterator[Finding]:
    """A note for each quota that could not be read."""
    for reason in dict.fromkeys(unread):
        yield Finding(
            "ORCH314",
            "nodes",
            "a quota is not checked: it cannot be read",
            detail=reason,
            hint="the cloud checks it when nodes are created",
            severity=Severity.NOTE,
        )
