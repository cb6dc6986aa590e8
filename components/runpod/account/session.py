"""The API key: that of orch.yml, else RUNPOD_API_KEY."""

from __future__ import annotations

import os

from orch.components.cloud_errors import CloudRefused
from orch.components.runpod.account.client import Login
from orch.components.runpod.account.errors import HINTS
from orch.spec.models.backends.runpod import RunpodSettings

KEY = "RUNPOD_API_KEY"


def open_login(settings: RunpodSettings) -> Login:
    """Raises CloudRefused where there is no key."""
    key = settings.creds.api_key if settings.creds is not None else os.environ.get(KEY)
    if key:
        return Login(key)
    raise CloudRefused(
        "there are no credentials of RunPod",
        detail=f"{KEY} is not set",
        hint=HINTS["credentials"],
        code="ORCH303",
    )
