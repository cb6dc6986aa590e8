"""The backend `crusoe`: InfiniBand clusters.

`account/` asks the project, `planner.py` decides (pure), `plugin.py` serves its resources to the engine.
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
from orch.components.crusoe.account.client import CrusoeClient
from orch.components.crusoe.account.errors import ERRORS
from orch.components.crusoe.account.facts import CrusoeFacts, IbNetwork, Reservation
from orch.components.crusoe.account.login import open_login, selected_by
from orch.components.crusoe.candidates import CrusoeCandidate, candidates, placed
from orch.components.crusoe.explain import EXPLAINED, INSTANCE, PACKAGE, traits
from orch.components.crusoe.plan import CrusoePlan
from orch.components.crusoe.planner import CrusoePlanner, needed_lookups
from orch.components.explain import Explained, Traits
from orch.components.node_count import node_indices
from orch.components.request import PlanRequest, PriorState
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.crusoe import CrusoeSettings


class CrusoeBackend(NeocloudBackend[CrusoeFacts, CrusoePlan]):
    name: ClassVar[str] = "crusoe"
    settings: ClassVar[type[BackendSettings]] = CrusoeSettings
    packages: ClassVar[tuple[str, ...]] = (f"{PACKAGE}:",)
    key_variables: ClassVar[tuple[str, ...]] = ("CRUSOE_ACCESS_KEY_ID",)
    explained: ClassVar[Explained] = EXPLAINED
    planner: ClassVar[type[AnyPlanner] | None] = CrusoePlanner
    node_type: ClassVar[str] = INSTANCE
    find: ClassVar[Callable[..., Sequence[CloudCandidate]]] = staticmethod(candidates)
    errors: ClassVar[CategoryErrors] = ERRORS
    image_pins: ClassVar[tuple[str, ...]] = ("image", "image_of", "bastion_image")

    def client(self, session: Any) -> CrusoeClient:
        return CrusoeClient(session)

    def open_session(self, settings: CrusoeSettings) -> Any:
        return open_login(settings)

    def settle(self, request: PlanRequest, candidates: Sequence[CloudCandidate]) -> Sequence[CloudCandidate]:
        """The locations and InfiniBand networks that the project has for them, in the order to try."""
        places = cast("Sequence[CrusoeCandidate]", candidates)
        if places[0].listed:
            return places
        client = self.connected(request)
        stock = request.once((self.name, "stock"), client.stock)
        nodes = len(node_indices(request.fleet, self.prior(request)))
        networks = self._networks(request)
        return placed(
            request.fleet,
            self.settings_of(request),
            places,
            stock=stock,
            networks=networks,
            nodes=nodes,
            reservations=self._reservations(request),
        )

    def _networks(self, request: PlanRequest) -> tuple[IbNetwork, ...]:
        return request.once((self.name, "networks"), self.connected(request).ib_networks)

    def _reservations(self, request: PlanRequest) -> tuple[Reservation, ...] | None:
        """Those of the organization, where the file names one; None where nobody tells."""
        if request.fleet.reservation is None:
            return None
        return request.once((self.name, "reservations"), self.connected(request).reservations)

    def facts(self, request: PlanRequest, candidate: CloudCandidate) -> CrusoeFacts:
        place = cast("CrusoeCandidate", candidate)
        prior = self.prior(request)
        lookups = needed_lookups(request.fleet, self.settings_of(request), place, prior, request.indices)
        changed = any(node.reservation != request.fleet.reservation for node in prior.nodes)
        reservations = self._reservations(request) if lookups.quota or changed else None
        return replace(self.connected(request).facts(lookups), room=place.room, reservations=reservations)

    def new_node(self, plan: CrusoePlan) -> dict[str, Any]:
        return {**super().new_node(plan), "reservation": plan.reservation}

    def traits(self, request: PlanRequest, candidate: CloudCandidate, plan: CrusoePlan) -> Traits:
        return traits(plan)

    def ended_nodes(
        self, previous: PriorState, settings: Iterable[BackendSettings], session: Callable[[str], Any]
    ) -> frozenset[str]:
        login = session(self.name) or self.open_session(self.entry(settings))
        nodes = {node.machine: node.name for node in previous.nodes if node.machine}
        return frozenset(nodes[each] for each in CrusoeClient(login).ended(nodes.keys()))

    def account(self, settings: Iterable[BackendSettings], session: Callable[[str], Any]) -> Account:
        """By the project, whose id no other project of Crusoe has: another key sees it, or is refused."""
        own: CrusoeSettings = self.entry(settings)
        given = session(self.name)
        login = given or self.open_session(own)
        words = f"Crusoe project {login.project} with the access key {login.access_key}"
        return Account(words, login.project, selected_by(own) if given is None else selected_in_rehearsal())
