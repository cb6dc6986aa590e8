"""How a rehearsal puts the simulated project in the place of Crusoe.

A service in this process is what orch's own client calls over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.crusoe.account import CrusoeCloud
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.http_service import url_of
from orch.spec.models.backends.base import BackendSettings


@dataclass(frozen=True)
class Session:
    """A login to the simulated project. Its provider needs no key: it finds the project by itself."""

    access_key: str
    secret_key: str = field(repr=False)
    project: str
    url: str
    key: Mapping[str, str] = field(default_factory=dict[str, str])


class CrusoeHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = CrusoeCloud

    def session(self, account: CrusoeCloud, configured: Sequence[BackendSettings]) -> Any:
        return Session(account.access_key, account.secret_key, account.project, f"{url_of(account)}/v1")


HOOKS = CrusoeHooks()
