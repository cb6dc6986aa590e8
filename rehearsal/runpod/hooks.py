"""How a rehearsal puts the simulated account in the place of RunPod.

A service in this process is what orch's own client calls over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.http_service import url_of
from orch.rehearsal.runpod.account import RunpodCloud
from orch.spec.models.backends.base import BackendSettings


@dataclass(frozen=True)
class Session:
    """A login to the simulated account."""

    key: str = field(repr=False)
    url: str


class RunpodHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = RunpodCloud

    def session(self, account: RunpodCloud, configured: Sequence[BackendSettings]) -> Any:
        return Session(account.api_key, url_of(account))


HOOKS = RunpodHooks()
