"""How a rehearsal puts the simulated account in the place of AWS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from orch.catalog.sdks import require_sdk
from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.hooks import CloudHooks
from orch.rehearsal.machines import Endpoint
from orch.spec.models.backends.base import BackendSettings
from orch.spec.state import FleetState

if TYPE_CHECKING:
    import boto3


class AwsHooks(CloudHooks):
    account: ClassVar[type[SimulatedAccount]] = Cloud

    def session(self, account: Cloud, configured: Sequence[BackendSettings]) -> boto3.Session:
        from orch.rehearsal.aws.client_hook import session

        require_sdk("boto3", "AWS")
        return session(account)

    def endpoints(self, account: Cloud, state: FleetState) -> Mapping[str, Endpoint]:
        """Fleets have networks of their own, so the same addresses; their nodes are told apart by the tag."""
        machines = account.instances()
        return {
            tag["Value"].rpartition("::")[2]: endpoint
            for each, endpoint in account.endpoints().items()
            if each in machines
            for tag in machines[each]["Tags"]
            if tag["Key"] == "orch:urn"
        }


HOOKS = AwsHooks()
