"""Calls of the provider to the account, and the words it tells a refusal with.

The words are those of Google's client for Go and of the provider's wait for operations: an operation's code
is not among them, only its message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from orch.rehearsal.store import Doc

API = "https://www.googleapis.com/compute/v1/"

TRIES = 25
"""How often a call is sent that is asked to come back; the real provider does so for minutes."""

POLL_S = 0.1

_AGAIN = frozenset({429, 500, 502, 503})
_AGAIN_REASONS = frozenset({"rateLimitExceeded", "operationInProgress", "resourceNotReady"})


class Account(Protocol):
    """What is asked of the account."""

    def request(
        self, method: str, path: str, params: Doc | None = None, body: Doc | None = None
    ) -> tuple[int, Doc]: ...


class CallFailed(Exception):
    """What went wrong, in the real provider's words."""


class ApiFailure(CallFailed):
    """The API refused a call."""

    def __init__(self, status: int, body: Doc) -> None:
        error: Doc = body.get("error") or {}
        self.status = status
        self.errors: list[Doc] = error.get("errors") or []
        super().__init__(
            _google(int(error.get("code") or status), str(error.get("message", "")), self.errors)
        )

    @property
    def reason(self) -> str:
        return str(self.errors[0].get("reason", "")) if self.errors else ""


class OperationFailure(CallFailed):
    """An operation that was begun and failed. `codes` are the cloud's."""

    def __init__(self, activity: str, errors: list[Doc]) -> None:
        self.codes = tuple(str(error.get("code", "")) for error in errors)
        super().__init__(f"Error waiting for {activity}: {''.join(map(_operation, errors))}")


class Api:
    """Calls of one project, as the provider is configured."""

    def __init__(self, account: Account, project: str, region: str | None, zone: str | None) -> None:
        self._account = account
        self.project = project
        self.region, self.zone = region or "", zone or ""

    def send(self, method: str, path: str, body: Doc | None = None, **params: Any) -> Doc:
        """One call. Raises ApiFailure."""
        pause = 0.05
        for number in range(TRIES):
            status, response = self._account.request(method, path.removeprefix(API), params, body)
            if status < 400:
                return response
            failure = ApiFailure(status, response)
            again = status in _AGAIN or failure.reason in _AGAIN_REASONS
            if not again or number == TRIES - 1:
                raise failure
            time.sleep(pause)
            pause = min(pause * 2, 2.0)
        raise AssertionError("unreachable")

    def get(self, path: str) -> Doc | None:
        """What is there, or None."""
        try:
            return self.send("GET", path)
        except ApiFailure as failure:
            if failure.status == 404:
                return None
            raise

    def perform(self, activity: str, method: str, path: str, body: Doc | None = None, **params: Any) -> Doc:
        """A call that begins an operation, and the wait for it. Raises ApiFailure, OperationFailure."""
        return self.wait(activity, self.send(method, path, body, **params))

    def wait(self, activity: str, operation: Doc) -> Doc:
        while operation.get("status") != "DONE":
            time.sleep(POLL_S)
            operation = self.send("GET", str(operation["selfLink"]))
        errors = (operation.get("error") or {}).get("errors")
        if errors:
            raise OperationFailure(activity, errors)
        return operation

    def removed(self, describe: Callable[[ApiFailure], str], activity: str, path: str) -> None:
        """Remove it; what is gone already is no error."""
        try:
            self.perform(activity, "DELETE", path)
        except ApiFailure as failure:
            if failure.status != 404:
                raise CallFailed(describe(failure)) from failure


def _google(code: int, message: str, errors: list[Doc]) -> str:
    """An error as google.golang.org/api's `googleapi.Error` writes it."""
    text = f"googleapi: Error {code}: {message}"
    if not errors:
        return text
    if len(errors) == 1 and errors[0].get("message") == message:
        return f"{text}, {errors[0].get('reason', '')}"
    more = "".join(f"Reason: {each.get('reason')}, Message: {each.get('message')}\n" for each in errors)
    return f"{text}\nMore details:\n{more}"


def _operation(error: Mapping[str, Any]) -> str:
    """An operation's error as the provider writes it: its message, a quota's numbers, then what helps."""
    text = f"{error.get('message', '')}\n"
    message: str | None = None
    link: Doc | None = None
    for detail in error.get("errorDetails") or ():
        quota = detail.get("quotaInfo")
        if error.get("code") == "QUOTA_EXCEEDED" and quota:
            text += f"\tmetric name = {quota.get('metricName')}\n\tlimit name = {quota.get('limitName')}\n"
            if quota.get("limit"):
                text += f"\tlimit = {quota['limit']}\n"
            if quota.get("dimensions"):
                pairs = " ".join(f"{key}:{value}" for key, value in sorted(quota["dimensions"].items()))
                text += f"\tdimensions = map[{pairs}]\n"
            break
        message = message or (detail.get("localizedMessage") or {}).get("message")
        link = link or next(iter((detail.get("help") or {}).get("links") or ()), None)
    if message:
        text += f"\n\n{message}\n"
    if link:
        text += "\n\n" + "".join(f"{link[key]}\n" for key in ("description", "url") if link.get(key))
    return text
