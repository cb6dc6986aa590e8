"""How a rehearsal puts the simulated account in the place of RunPod.

A service in this process is what orch's own client calls over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from orch.rehearsal.account import Endpoint, SimulatedAccount
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.runpod.service import Session, url_of
from orch.spec.models.backends.base import BackendSettings
from orch.spec.state import FleetState


class RunpodHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = RunpodCloud

    def session(self, account: RunpodCloud, configured: Sequence[BackendSettings]) -> Any:
        return Session(account.api_key, url_of(account))

    def endpoints(self, account: RunpodCloud, state: FleetState) -> Mapping[str, Endpoint]:
        pods, names = account.instances(), {node.machine: node.name for node in state.nodes}
        return {
            names[each]: endpoint
            for each, endpoint in account.endpoints().items()
            if each in pods and each in names
        }


HOOKS = RunpodHooks()
