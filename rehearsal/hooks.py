"""How a simulated account takes the place of a cloud: one subclass of `CloudHooks` in each simulator's
`hooks.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.machines import Endpoint
from orch.spec.models.backends.base import BackendSettings
from orch.spec.state import FleetState


class CloudHooks(ABC):
    """How a simulated account is put in the place of a cloud.

    `account` is its class. Beside it the cloud's folder has `plugin.py` with `main`, which serves the account
    to the engine.
    """

    account: ClassVar[type[SimulatedAccount]]

    @abstractmethod
    def session(self, account: Any, configured: Sequence[BackendSettings]) -> Any:
        """What the cloud's backend is asked through, as `PlanRequest.session` gives it."""

    def endpoints(self, account: Any, state: FleetState) -> Mapping[str, Endpoint]:
        """Node -> where the local node is reached that stands for it, by the machine that it records."""
        machines, names = account.instances(), {node.machine: node.name for node in state.nodes}
        return {
            names[each]: endpoint
            for each, endpoint in account.endpoints().items()
            if each in machines and each in names
        }
