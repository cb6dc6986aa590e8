"""Logging in to Nebius: by the key of a service account, else as the SDK itself finds the way.

The provider of the engine is a process of its own: it is configured with the parts of the same key, and logs
in by them. Without a key both look at NEBIUS_IAM_TOKEN and at the configuration of Nebius's command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from orch.components.accounts import CREDS
from orch.components.cloud.rest.client import no_credentials
from orch.components.cloud_errors import CloudRefused
from orch.components.nebius.account.errors import HINTS
from orch.spec.install import install_hint
from orch.spec.models.backends.credentials import NebiusServiceAccountCreds
from orch.spec.models.backends.nebius import NebiusSettings

TOKEN = "NEBIUS_IAM_TOKEN"
CONFIG = Path("~/.nebius/config.yaml")

PARTS = ("service_account_id", "public_key_id", "private_key")
"""What a key of a service account consists of, as the provider is configured with it. The last is secret."""


@dataclass(frozen=True)
class Session:
    """A login that is made when it is first used. `key`: the PARTS, none of them where the SDK finds the way.

    `projects` are those that orch.yml names.
    """

    key: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    projects: Sequence[str] = ()

    @cached_property
    def sdk(self) -> Any:
        """Raises CloudRefused without the SDK, or where there is nothing to log in with."""
        try:
            from nebius.aio.cli_config import Config
            from nebius.base.service_account.service_account import Reader, ServiceAccount
            from nebius.sdk import SDK
        except ModuleNotFoundError as error:
            raise CloudRefused(
                "Nebius's SDK is not installed",
                detail=str(error),
                hint=install_hint("nebius"),
                code="ORCH303",
            ) from error
        if not self.key:
            if os.environ.get(TOKEN):
                return SDK(user_agent_prefix="orch")
            if not CONFIG.expanduser().is_file():
                detail = f"{TOKEN} is not set, and there is no {CONFIG}"
                raise no_credentials("Nebius", detail, HINTS["credentials"])
            return SDK(config_reader=Config(), user_agent_prefix="orch")
        account, public, private = (self.key[part] for part in PARTS)
        key = _private_key(private)

        class Key(Reader):
            def read(self) -> ServiceAccount:
                return ServiceAccount(key, public, account)

        return SDK(credentials=Key(), user_agent_prefix="orch")


def open_session(settings: NebiusSettings) -> Session:
    """Raises CloudRefused where the key of orch.yml does not read."""
    creds = settings.creds
    if creds is None:
        return Session(projects=settings.projects)
    return Session(_parts(creds), settings.projects)


def login_of(session: Session) -> str:
    """Whom a session logs in as, as far as it is known without asking, as a part of a sentence."""
    if session.key:
        return f"as the service account {session.key['service_account_id']}"
    return f"by the token in {TOKEN}" if os.environ.get(TOKEN) else f"by the profile in {CONFIG}"


def selected_by(settings: NebiusSettings) -> str:
    """Return the entry of orch.yml, the variable or the file that selects the credentials."""
    if settings.creds is not None:
        return CREDS
    return TOKEN if os.environ.get(TOKEN) else f"the profile in {CONFIG}"


def _parts(creds: NebiusServiceAccountCreds) -> dict[str, str]:
    if creds.filename is not None:
        # Source: pysdk nebius/base/service_account/credentials_file.py.
        text = _read(creds.filename)
        try:
            subject = json.loads(text)["subject-credentials"]
            parts = (str(subject["sub"]), str(subject["kid"]), str(subject["private-key"]))
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(creds.filename, f"{type(error).__name__}: {error}") from error
    else:
        private = _read(creds.private_key_file) if creds.private_key_file else creds.private_key_content
        parts = (creds.service_account_id or "", creds.public_key_id or "", private or "")
    _private_key(parts[2])
    return dict(zip(PARTS, parts, strict=True))


def _read(name: str) -> str:
    try:
        return Path(name).expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(name, str(error)) from error


def _private_key(text: str) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise _unreadable("`creds` of orch.yml", "the private key is no key in PEM") from error


def _unreadable(source: str, reason: str) -> CloudRefused:
    return CloudRefused(
        f"the key of Nebius's service account in {source} does not read",
        detail=reason,
        hint="the console makes one: Administration, Service accounts, Create authorized key",
        code="ORCH303",
    )
