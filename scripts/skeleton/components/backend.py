"""The backend `newcloud`: how its parts fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from orch.components.accounts import Account
from orch.components.cloud.candidates import CloudCandidate
from orch.components.cloud.neocloud import NeocloudBackend
from orch.components.cloud.rest.client import account_of_key
from orch.components.explain import Traits
from orch.components.newcloud.account.client import KEY, NewcloudClient, open_login
from orch.components.newcloud.account.errors import ERRORS
from orch.components.newcloud.account.facts import NewcloudFacts, Stock
from orch.components.newcloud.candidates import NewcloudCandidate, candidates, placed
from orch.components.newcloud.explain import EXPLAINED, INSTANCE, PACKAGE, traits
from orch.components.newcloud.plan import NewcloudPlan
from orch.components.newcloud.planner import NewcloudPlanner, image_of, pinned_image
from orch.components.request import PlanRequest
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.newcloud import NewcloudSettings

# package: from pathlib import Path


class NewcloudBackend(NeocloudBackend[NewcloudFacts, NewcloudPlan]):
    name = "newcloud"
    settings = NewcloudSettings
    packages = (f"{PACKAGE}:",)
    key_variables = (KEY,)
    explained = EXPLAINED
    planner = NewcloudPlanner
    node_type = INSTANCE
    find = staticmethod(candidates)
    errors = ERRORS
    image_pins = ("image", "image_of", "image_region")
    # package: rehearsal = "orch.rehearsal.newcloud"
    # package: catalog = Path(__file__).parent

    def client(self, session: Any) -> NewcloudClient:
        return NewcloudClient(session, **getattr(session, "pace", {}))

    def open_session(self, settings: NewcloudSettings) -> Any:
        return open_login(settings)

    def _stock(self, request: PlanRequest) -> Stock:
        return request.once((self.name, "stock"), self.connected(request).stock)

    def settle(self, request: PlanRequest, candidates: Sequence[CloudCandidate]) -> Sequence[CloudCandidate]:
        """Return the places with capacity now, in the order to try."""
        places = cast("Sequence[NewcloudCandidate]", candidates)
        if places[0].listed:
            return places
        return placed(request.fleet, places, self._stock(request))

    def facts(self, request: PlanRequest, candidate: CloudCandidate) -> NewcloudFacts:
        place = cast("NewcloudCandidate", candidate)
        wanted = pinned_image(request.fleet, place.region, self.prior(request)) or image_of(request.fleet)
        known = self._stock(request).get(place.type.name)
        return NewcloudFacts(
            self.connected(request).image(wanted, place.region), known.disk_gib if known else 0, place.room
        )

    def traits(self, request: PlanRequest, candidate: CloudCandidate, plan: NewcloudPlan) -> Traits:
        return traits(plan)

    def account(self, settings: Iterable[BackendSettings], session: Callable[[str], Any]) -> Account:
        """Return the account without an id. If the API tells whose a key is, return that id."""
        return account_of_key(self.entry(settings), session(self.name), open_login, KEY)
