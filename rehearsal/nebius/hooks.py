"""How a rehearsal puts the simulated account in the place of Nebius.

A service in this process is what Nebius's own SDK logs in to and calls over the wire."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from orch.rehearsal.account import Endpoint, SimulatedAccount
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.nebius.service import NebiusService, sdk_of
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.state import FleetState


@dataclass(frozen=True)
class Session:
    """A login to the simulated account. Its provider needs no key: it finds the account by itself."""

    sdk: Any
    projects: Sequence[str] = ()
    key: Mapping[str, str] = field(default_factory=dict[str, str])


_SERVED: dict[tuple[int, Path], tuple[NebiusService, Any]] = {}
"""By process and account: a service and its clients do not live on in a fork."""


def sdk_at(cloud: NebiusCloud) -> Any:
    """The SDK, logged in to a service of this process for an account; one for each account."""
    key = os.getpid(), cloud.path.resolve()
    if key not in _SERVED:
        service = NebiusService(cloud)
        _SERVED[key] = service, sdk_of(cloud, service.address)
    return _SERVED[key][1]


class NebiusHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = NebiusCloud

    def session(self, account: NebiusCloud, configured: Sequence[BackendSettings]) -> Any:
        return Session(sdk_at(account), entry_of(configured, NebiusSettings).projects)

    def endpoints(self, account: NebiusCloud, state: FleetState) -> Mapping[str, Endpoint]:
        machines, names = account.instances(), {node.machine: node.name for node in state.nodes}
        return {
            names[each]: endpoint
            for each, endpoint in account.endpoints().items()
            if each in machines and each in names
        }


HOOKS = NebiusHooks()
