"""The clouds' own libraries: extras of ours that bear the cloud's name, loaded when something is asked."""

from __future__ import annotations

import importlib
from typing import Any

from orch.catalog.errors import NoSdk
from orch.spec.install import install_hint


def require_sdk(module: str, cloud: str) -> Any:
    """A module of a cloud's SDK; `cloud` as people write it (AWS). Raises NoSdk."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = cloud.lower()
        raise NoSdk(
            f"{cloud}'s SDK is not installed",
            detail=str(error),
            hint=install_hint(extra),
            code="ORCH306",
        ) from error
