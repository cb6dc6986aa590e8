"""How a rehearsal puts the simulated account in the place of Newcloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.http_service import url_of
from orch.rehearsal.newcloud.account import NewcloudAccount
from orch.spec.models.backends.base import BackendSettings

PACE: Mapping[str, float] = {"pause_s": 0.2}
"""How a simulated account is asked: it is as fast as this machine."""


@dataclass(frozen=True)
class Session:
    """A login to the simulated account. Its provider needs no key: it finds the account by itself."""

    api_key: str = field(repr=False)
    url: str
    key: Mapping[str, str] = field(default_factory=dict[str, str])
    pace: Mapping[str, float] = field(default_factory=lambda: PACE)


class NewcloudHooks(CloudHooks):
    account = NewcloudAccount

    def session(self, account: NewcloudAccount, configured: Sequence[BackendSettings]) -> Any:
        return Session(account.api_key, f"{url_of(account)}/v1")


HOOKS = NewcloudHooks()
