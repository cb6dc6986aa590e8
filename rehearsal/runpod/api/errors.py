"""RunPod's errors: a status, and application/problem+json with a title and a detail that people read.

Missing capacity has no code of its own: it is a 400 with a detail, as a broken rule is. Source: runpod/docs
api-reference-v2/openapi.json, responses and "Which failures are worth retrying" of POST /v2/pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from orch.rehearsal.http_service import HttpRefusal
from orch.rehearsal.store import Doc


class RunpodError(HttpRefusal):
    """A refusal. `errors`: what is wrong with the body, one line each; `headers` go with the answer."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        kind = {"Content-Type": "application/problem+json"}
        super().__init__(status, code or str(status), detail, {**kind, **(headers or {})})
        self.errors = tuple(errors)

    def document(self) -> Doc:
        body: Doc = {"title": HTTPStatus(self.status).phrase, "status": self.status, "detail": self.message}
        return {**body, "errors": list(self.errors)} if self.errors else body


def not_found(words: str) -> RunpodError:
    return RunpodError(404, f"{words} not found")


def no_pods_left() -> RunpodError:
    """Source: what RunPod answers to pods without capacity, in issues of runpodctl and runpod-python."""
    text = "There are no longer any instances available with the requested specifications."
    return RunpodError(400, f"{text} Please refresh and try again.", code="NO_CAPACITY")


def no_cluster() -> RunpodError:
    """Source: what POST /v2/clusters answered in August 2026, as public repositories tell."""
    return RunpodError(400, "Insufficient resources", code="NO_CAPACITY")


def balance_too_low() -> RunpodError:
    return RunpodError(402, "Insufficient balance: your balance must cover one hour of this deployment")


def over_spend_limit(limit: float) -> RunpodError:
    """The status of it is not documented; the limit is (accounts-billing/billing.mdx)."""
    return RunpodError(402, f"This deployment would exceed your spend limit of ${limit:.2f} per hour")


def forbidden() -> RunpodError:
    return RunpodError(403, "access denied")


def too_many_requests() -> RunpodError:
    headers = {"Retry-After": "1", "RateLimit": '"minute";r=0;t=1'}
    return RunpodError(429, "rate limit exceeded for the minute window", headers=headers)


def injected(code: str, message: str) -> RunpodError:
    """A failure that a test asks for, by a status or by one of our names of what has no status of its own."""
    if code == "NO_CAPACITY":
        return no_cluster()
    return RunpodError(int(code) if code.isdecimal() else 500, message)
