"""How a rehearsal puts the simulated account in the place of RunPod.

A service in this process is what orch's own client calls over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.runpod.service import Session, url_of
from orch.spec.models.backends.base import BackendSettings


class RunpodHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = RunpodCloud

    def session(self, account: RunpodCloud, configured: Sequence[BackendSettings]) -> Any:
        return Session(account.api_key, url_of(account))


HOOKS = RunpodHooks()
