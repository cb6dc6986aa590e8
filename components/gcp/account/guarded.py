"""Google's clients, guarded against answers that are none of Google's and against lists that do not end."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import Any

from orch.components.cloud_errors import CloudRefused
from orch.components.gcp.account.client_errors import not_found
from orch.spec.cursors import Cursors

HINT = "does a proxy or a network in between want a login? Look at HTTPS_PROXY"


class Guarded:
    """A client of google-cloud-compute. Its calls raise CloudRefused (ORCH358) for an answer of a stranger: a
    404 of a proxy says nothing of a resource, and a captive portal answers with its page."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found
        endpoint = str(getattr(self._client, "api_endpoint", "compute.googleapis.com"))
        address = endpoint if "://" in endpoint else f"https://{endpoint}"

        def call(*values: Any, **named: Any) -> Any:
            answer = _checked(address, lambda: found(*values, **named))
            return _rows(address, answer) if name in ("list", "aggregated_list") else answer

        return call


def is_error_of_google(answer: Any) -> bool:
    """Whether the body of an HTTP refusal is Google's. Source: Google API design guide, "Errors", HTTP
    mapping."""
    try:
        problem = answer.json()
    except (ValueError, AttributeError):
        return False
    error = problem.get("error") if isinstance(problem, dict) else None
    return isinstance(error, dict) and error.get("code") == answer.status_code


def stranger(address: str, why: str) -> CloudRefused:
    """Return the error for an answer that is none of Google's."""
    summary = "GCP cannot be reached: something else answers at its address"
    return CloudRefused(summary, where=address, detail=why, hint=HINT, code="ORCH358")


def endless(why: str) -> CloudRefused:
    """Return the error for a list of GCP that does not end."""
    return CloudRefused("GCP answers with a list that does not end", detail=why, code="ORCH358")


def document(answer: Any) -> dict[str, Any]:
    """Return the document of a successful answer over HTTP. Raises CloudRefused (ORCH358)."""
    try:
        found = answer.json()
    except ValueError as error:
        raise stranger(answer.url, f"the answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise stranger(answer.url, "the answer is no document")
    return found


def is_gone(answer: Any) -> bool:
    """Whether Google's API says that there is no such resource. Raises CloudRefused (ORCH358) for a 404 of a
    stranger."""
    if answer.status_code != 404:
        return False
    if not is_error_of_google(answer):
        raise stranger(answer.url, "HTTP 404, without an error document of Google's")
    return True


def _checked(address: str, call: Callable[[], Any]) -> Any:
    parse_error: Any = importlib.import_module("google.protobuf.json_format").ParseError
    try:
        return call()
    except not_found() as error:
        if error.response is not None and not is_error_of_google(error.response):
            raise stranger(address, "HTTP 404, without an error document of Google's") from error
        raise
    except parse_error as error:
        raise stranger(address, f"the answer is not the JSON that it should be: {error}") from error
    except AttributeError as error:
        # Google's library looks for an object in `error` of a refusal.
        *_, (frame, _) = walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") != "google.api_core.exceptions":
            raise
        raise stranger(address, "the refusal is no error document of Google's") from error


def _rows(address: str, pager: Any) -> Iterator[Any]:
    """Yield what the pager itself would."""
    cursors, pages = Cursors(endless), iter(pager.pages)
    while (page := _checked(address, lambda: next(pages, None))) is not None:
        items = page.items
        yield from items.items() if hasattr(items, "keys") else items
        cursors.next(page.next_page_token)
