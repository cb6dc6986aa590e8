"""Asking a cloud for prices by REST, with an API key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from orch.catalog.errors import NoSdk, RefreshFailed


def ask(title: str, extra: str, url: str, *, key: str, query: Mapping[str, str] | None = None) -> Any:
    """What a cloud answers, as JSON. `key`: the variable with the API key; `extra`: what installs httpx.

    Raises NoSdk and RefreshFailed.
    """
    try:
        import httpx
    except ImportError as error:
        raise NoSdk(
            f"httpx is not installed, by which {title} is asked",
            detail=str(error),
            hint=f"pip install 'orch-fleet[{extra}]'; in a checkout: pip install -e '.[{extra}]'",
            code="ORCH306",
        ) from error
    secret = os.environ.get(key)
    if not secret:
        raise RefreshFailed(f"there is no API key to ask {title} for prices with", hint=f"set {key}")
    headers, limits = {"Authorization": f"Bearer {secret}"}, httpx.Timeout(30, connect=5)
    try:
        answer = httpx.get(url, params=dict(query or {}), headers=headers, timeout=limits)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RefreshFailed(
            f"{title} cannot be reached",
            detail=str(error),
            hint="prices are refreshed over the network; without one, those at hand stay in use",
        ) from error
    said = answer.text.strip()[:200]
    if answer.status_code in (401, 403):
        raise RefreshFailed(f"{title} refused the API key", detail=said, hint=f"look at {key}")
    if not answer.is_success:
        raise RefreshFailed(f"{title} refused a request for prices", detail=said)
    try:
        return answer.json()
    except ValueError as error:
        raise otherwise(title, error) from error


def otherwise(title: str, error: Exception) -> RefreshFailed:
    """An answer is not what its documentation says."""
    return RefreshFailed(f"{title} answers otherwise than its documentation says", detail=str(error))
