"""Log-in to Crusoe, and the signature of each call."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orch.components.cloud.rest.client import check_address, no_credentials
from orch.components.cloud_errors import CloudRefused
from orch.components.crusoe.account.errors import HINTS

if TYPE_CHECKING:
    from orch.spec.models.backends.crusoe import CrusoeSettings


API = "https://api.cloud.crusoe.ai/v1"
KEY, SECRET = "CRUSOE_ACCESS_KEY_ID", "CRUSOE_SECRET_KEY"
PROJECT, ENDPOINT = "CRUSOE_DEFAULT_PROJECT", "CRUSOE_API_ENDPOINT"
PARTS = ("access_key", "secret_key", "project", "url")
"""Fields of a login, which are also the configuration of the provider."""

MOST_OFF_S = 60.0
"""Limit in seconds on the error of this machine's clock. Beyond it, a message names the clock."""


@dataclass(frozen=True)
class Login:
    """An access key and a project; `url`: where the API is, with its version."""

    access_key: str
    secret_key: str = field(repr=False)
    project: str
    url: str = API

    @property
    def key(self) -> dict[str, str]:
        return {part: str(getattr(self, part)) for part in PARTS}


_PLAIN = re.compile(r"[A-Za-z0-9_=-]+")

VERSION = "1.0"
"""Version of the signature scheme."""


def signature(secret: str, method: str, path: str, query: str, stamp: str) -> str:
    """The signature of a request without its body. Raises ValueError for a secret that is not base64url.

    `path`: with the version of the API; `query`: as it is sent; `stamp`: RFC 3339.
    """
    key = urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
    message = f"{path}\n{query}\n{method}\n{stamp}\n"
    digest = hmac.new(key, message.encode("ascii"), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


def selected_by(settings: CrusoeSettings) -> str:
    """Return the entry of orch.yml, or the variable, that selects the project of `open_login`."""
    return "project_id of orch.yml" if settings.project_id else f"{PROJECT}={os.environ.get(PROJECT)}"


def open_login(settings: CrusoeSettings) -> Login:
    """With the key of orch.yml, else of the environment. Raises CloudRefused where something is missing, or
    cannot be what it is meant to be."""
    creds, known = settings.creds, os.environ
    key = creds.access_key if creds is not None else known.get(KEY)
    secret = creds.secret_key if creds is not None else known.get(SECRET)
    if not key or not secret:
        missing = " and ".join(name for name, value in ((KEY, key), (SECRET, secret)) if not value)
        raise no_credentials("Crusoe", f"{missing} not set", HINTS["credentials"])
    project = settings.project_id or known.get(PROJECT)
    if not project:
        raise CloudRefused(
            "no project of Crusoe is named",
            detail=f"{PROJECT} is not set",
            hint=f"set `project_id` of `crusoe` in orch.yml, or {PROJECT}",
            code="ORCH303",
        )
    url = known.get(ENDPOINT) or API
    check_address("Crusoe", url=url, variable=ENDPOINT, usual=API)
    for words, value in (("access key", key), ("secret key", secret), ("project", project)):
        if not _PLAIN.fullmatch(value):
            shown = f"{value!r}: " if words == "project" else ""
            raise CloudRefused(
                f"the {words} of Crusoe does not read",
                detail=f"{shown}an id or a key has letters, digits, `-`, `_` and `=` alone",
                hint=f"set `project_id` of `crusoe` in orch.yml, or {PROJECT}, to the project's id"
                if words == "project"
                else HINTS["credentials"],
                code="ORCH303",
            )
    return Login(key, secret, project, url)
