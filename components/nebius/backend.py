"""The backend `nebius`: InfiniBand clusters.

`account/` asks the tenant, `planner.py` decides (pure), `plugin.py` serves its resources to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from orch.components.accounts import Account, selected_in_rehearsal
from orch.components.cloud.candidates import CloudCandidate
from orch.components.cloud.neocloud import NeocloudBackend
from orch.components.cloud.planner import AnyPlanner
from orch.components.cloud_errors import CategoryErrors
from orch.components.explain import Explained, Traits
from orch.components.marks.marked import Survey
from orch.components.marks.orphans import StackSnapshot
from orch.components.nebius.account import orphans
from orch.components.nebius.account.client import NebiusClient
from orch.components.nebius.account.errors import ERRORS, NebiusRefused
from orch.components.nebius.account.facts import NebiusFacts, Stock
from orch.components.nebius.account.session import login_of, open_session, selected_by
from orch.components.nebius.candidates import NebiusCandidate, by_stock, candidates, room_at, told_fabrics
from orch.components.nebius.explain import EXPLAINED, INSTANCE, PACKAGE, traits
from orch.components.nebius.plan import NebiusPlan
from orch.components.nebius.planner import NebiusPlanner, needed_lookups
from orch.components.node_count import node_indices
from orch.components.request import PlanRequest, PriorState
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.suggest import few

PINNED_IMAGES = ("image", "image_of", "image_region", "bastion_image")


class NebiusBackend(NeocloudBackend[NebiusFacts, NebiusPlan]):
    name: ClassVar[str] = "nebius"
    settings: ClassVar[type[BackendSettings]] = NebiusSettings
    packages: ClassVar[tuple[str, ...]] = (f"{PACKAGE}:",)
    key_variables: ClassVar[tuple[str, ...]] = ("NEBIUS_IAM_TOKEN",)
    explained: ClassVar[Explained] = EXPLAINED
    planner: ClassVar[type[AnyPlanner] | None] = NebiusPlanner
    node_type: ClassVar[str] = INSTANCE
    find: ClassVar[Callable[..., Sequence[CloudCandidate]]] = staticmethod(candidates)
    errors: ClassVar[CategoryErrors] = ERRORS
    image_pins: ClassVar[tuple[str, ...]] = PINNED_IMAGES

    def client(self, session: Any) -> NebiusClient:
        return NebiusClient(session)

    def open_session(self, settings: NebiusSettings) -> Any:
        return open_session(settings)

    def settle(self, request: PlanRequest, candidates: Sequence[CloudCandidate]) -> Sequence[CloudCandidate]:
        """Those of regions that have a project, in the order of what Nebius tells of its stock."""
        places = cast("Sequence[NebiusCandidate]", candidates)
        if places[0].listed:
            return places
        projects = self._projects(request)
        nodes = len(node_indices(request.fleet, self.prior(request)))
        stock = self._stock(request)
        known = told_fabrics(request.fleet, self.settings_of(request), places, stock)
        settled = by_stock(known, stock, projects, nodes)
        if settled:
            return settled
        regions = few(dict.fromkeys(each.region for each in places))
        raise PlanErrors(
            [
                Finding(
                    "ORCH205",
                    "regions",
                    f"these credentials see no project of Nebius in {regions}",
                    detail=f"they see one in {few(sorted(projects))}" if projects else None,
                    hint="make a project there, or name it in `projects` of orch.yml where there are several",
                )
            ]
        )

    def _projects(self, request: PlanRequest) -> dict[str, str]:
        return request.once((self.name, "projects"), self.connected(request).projects)

    def _stock(self, request: PlanRequest) -> Stock:
        """What Nebius tells of its stock; nothing where these credentials may not read it."""
        client = self.connected(request)

        def ask() -> Stock:
            try:
                return client.stock(client.tenant())
            except NebiusRefused as refused:
                if refused.category != "permission":
                    raise
                return {}

        return request.once((self.name, "stock"), ask)

    def facts(self, request: PlanRequest, candidate: CloudCandidate) -> NebiusFacts:
        place = cast("NebiusCandidate", candidate)
        prior = self.prior(request)
        project = prior.pins.get("project") if place.kept else None
        if project is None:
            project = self._projects(request)[place.region]
        lookups = needed_lookups(request.fleet, self.settings_of(request), place, prior, request.indices)
        facts = self.connected(request).facts(project, lookups)
        return facts if place.kept else replace(facts, stock=room_at(self._stock(request), place))

    def new_node(self, plan: NebiusPlan) -> dict[str, Any]:
        return {**super().new_node(plan), "reservation": plan.reservation}

    def traits(self, request: PlanRequest, candidate: CloudCandidate, plan: NebiusPlan) -> Traits:
        return traits(plan)

    def ended_nodes(
        self, previous: PriorState, settings: Iterable[BackendSettings], session: Callable[[str], Any]
    ) -> frozenset[str]:
        account = session(self.name) or self.open_session(self.entry(settings))
        nodes = {node.machine: node.name for node in previous.nodes if node.machine}
        return frozenset(nodes[each] for each in NebiusClient(account).ended(list(nodes)))

    def account(self, settings: Iterable[BackendSettings], session: Callable[[str], Any]) -> Account:
        own: NebiusSettings = self.entry(settings)
        words = f"Nebius projects {', '.join(own.projects)}" if own.projects else "Nebius account"
        given = session(self.name)
        tenant = NebiusClient(given or self.open_session(own)).identity()
        words = f"{words} of the tenant {tenant}"
        if given is not None:
            return Account(words, tenant, selected_in_rehearsal())
        return Account(f"{words} {login_of(self.open_session(own))}", tenant, selected_by(own))

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        return orphans.survey(self.client(self.asked_by(state)), project, self.price)

    def delete_orphans(self, snapshot: StackSnapshot) -> Iterable[str]:
        return orphans.delete_orphans(snapshot, lambda: self.client(self.asked_by(snapshot)))
