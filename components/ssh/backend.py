"""The backend of existing hosts (`ssh_config`): nothing is rented, hosts are checked and registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from orch.components.base import Backend
from orch.components.deployment import Deployment
from orch.components.explain import Explained
from orch.components.init_steps import scripts
from orch.components.request import PlanRequest
from orch.components.ssh.facts import SshFacts, ask
from orch.components.ssh.plan import SshPlan, plan
from orch.runner.ssh.naming import pins
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.ssh import SshSettings

EXPLAINED = Explained(noun="host", owned_by_user=True)


@dataclass(frozen=True)
class ListedHosts:
    """The one place of such a fleet: the hosts that its file lists."""

    backend: str = "ssh"
    price: float | None = 0.0
    kept: bool = True
    words: str = "existing hosts"


class SshBackend(Backend[ListedHosts, SshFacts, SshPlan]):
    name: ClassVar[str] = "ssh"
    settings: ClassVar[type[BackendSettings]] = SshSettings
    explained: ClassVar[Explained] = EXPLAINED

    def candidates(self, request: PlanRequest) -> Sequence[ListedHosts]:
        return (ListedHosts(),)

    def facts(self, request: PlanRequest, candidate: ListedHosts) -> SshFacts:
        previous, consent = request.previous, request.consent
        return ask(
            request.fleet,
            request.folder,
            pinned=pins(previous.nodes),
            consent=consent,
            network=None if consent.accept_drift else previous.pins.get("network"),
        )

    def plan(self, request: PlanRequest, candidate: ListedHosts, facts: SshFacts) -> SshPlan:
        return plan(request, facts, scripts(request.fleet, request.folder))

    def deploy(self, request: PlanRequest, candidate: ListedHosts, plan: SshPlan) -> Deployment:
        config = request.fleet.ssh_config
        return replace(
            super().deploy(request, candidate, plan),
            problems=plan.problems,
            warnings=plan.warnings,
            new_keys=plan.new_keys,
            isolated=frozenset({"orch:ssh:Host"}),
            parallel=config.parallel if config else None,
            place=None,
        )
