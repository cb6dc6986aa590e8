"""Log-in to Lambda."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orch.components.cloud.rest.client import check_address, check_key, no_credentials
from orch.components.lambda_.account.errors import HINTS

if TYPE_CHECKING:
    from orch.spec.models.backends.lambda_ import LambdaSettings


API = "https://cloud.lambda.ai/api/v1"
KEY, ENDPOINT = "LAMBDA_API_KEY", "LAMBDA_API_ENDPOINT"
PARTS = ("api_key", "url")
"""Fields of a login, which are also the configuration of the provider."""


@dataclass(frozen=True)
class Login:
    """An API key; `url`: where the API is, with its version."""

    api_key: str = field(repr=False)
    url: str = API

    @property
    def key(self) -> dict[str, str]:
        return {part: str(getattr(self, part)) for part in PARTS}


def open_login(settings: LambdaSettings) -> Login:
    """With the key of orch.yml, else of the environment. Raises CloudRefused where there is none, or it
    cannot be one."""
    key = settings.creds.api_key if settings.creds is not None else os.environ.get(KEY)
    if not key:
        raise no_credentials("Lambda", f"{KEY} not set", HINTS["credentials"])
    url = os.environ.get(ENDPOINT) or API
    check_address("Lambda", url=url, variable=ENDPOINT, usual=API)
    check_key("Lambda", key, HINTS["credentials"])
    return Login(key, url)
