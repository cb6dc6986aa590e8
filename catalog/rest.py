"""Asking a cloud for prices by REST, with an API key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from orch.catalog.errors import NoSdk, RefreshFailed
from orch.spec.install import install_hint

_KEY = re.compile(r"[!-~]+")


def ask(title: str, extra: str, url: str, *, key: str, query: Mapping[str, str] | None = None) -> Any:
    """Ask a cloud, and return its answer as JSON. `key`: the variable with the API key; `extra`: what
    installs httpx.

    Raises NoSdk and RefreshFailed.
    """
    try:
        import httpx
    except ImportError as error:
        raise NoSdk(
            f"httpx is not installed, by which {title} is asked",
            detail=str(error),
            hint=install_hint(extra),
            code="ORCH306",
        ) from error
    secret = os.environ.get(key)
    if not secret:
        raise RefreshFailed(f"there is no API key to ask {title} for prices with", hint=f"set {key}")
    if not _KEY.fullmatch(secret):
        raise RefreshFailed(
            f"the API key of {title} does not read",
            detail="a key has letters and digits of ASCII, and no blanks",
            hint=f"look at {key}",
        )
    headers, limits = {"Authorization": f"Bearer {secret}"}, httpx.Timeout(30, connect=5)
    try:
        answer = httpx.get(url, params=dict(query or {}), headers=headers, timeout=limits)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RefreshFailed(
            f"{title} cannot be reached",
            where=url,
            detail=str(error),
            hint="prices are refreshed over the network; without one, those at hand stay in use",
        ) from error
    said = answer.text.strip()[:200]
    if answer.status_code in (401, 403):
        raise RefreshFailed(f"{title} refused the API key", detail=said, hint=f"look at {key}")
    if not answer.is_success:
        raise RefreshFailed(f"{title} refused a request for prices", where=url, detail=said)
    try:
        return answer.json()
    except ValueError as error:
        raise otherwise(title, error, where=url) from error


def otherwise(title: str, error: Exception, *, where: str | None = None) -> RefreshFailed:
    """An answer is not what its documentation says."""
    summary = f"{title} answers otherwise than its documentation says"
    return RefreshFailed(summary, where=where, detail=str(error))
