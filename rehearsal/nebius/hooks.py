"""How a rehearsal puts the simulated account in the place of Nebius.

A service in this process is what Nebius's own SDK logs in to and calls over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.nebius.service import Session, sdk_at
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.nebius import NebiusSettings


class NebiusHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = NebiusCloud

    def session(self, account: NebiusCloud, configured: Sequence[BackendSettings]) -> Any:
        return Session(sdk_at(account), entry_of(configured, NebiusSettings).projects)


HOOKS = NebiusHooks()
