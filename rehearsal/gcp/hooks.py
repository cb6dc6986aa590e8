"""How a rehearsal puts the simulated account in the place of GCP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from orch.rehearsal.account import Endpoint, SimulatedAccount
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.hooks import CloudHooks
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.state import FleetState

GCP_PROJECT = "orch-rehearsal"
"""The project of the simulated account where orch.yml names none."""


class GcpHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = GcpCloud

    def session(self, account: GcpCloud, configured: Sequence[BackendSettings]) -> Any:
        from orch.rehearsal.gcp import client_hook

        return client_hook.session(account, entry_of(configured, GcpSettings).project_id or GCP_PROJECT)

    def endpoints(self, account: GcpCloud, state: FleetState) -> Mapping[str, Endpoint]:
        """By the fleet's label, and the address, which also members of a group have."""
        machines, names = account.instances(), {node.internal_ip: node.name for node in state.nodes}
        return {
            names[address]: endpoint
            for each, endpoint in account.endpoints().items()
            if each in machines
            and machines[each].get("labels", {}).get("orch-fleet") == state.name
            and (address := machines[each]["networkInterfaces"][0].get("networkIP")) in names
        }


HOOKS = GcpHooks()
