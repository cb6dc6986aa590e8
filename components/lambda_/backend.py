"""The backend `lambda`: single instances, and 1-Click Clusters that exist.

`account/` asks the account, `planner.py` decides (pure), `plugin.py` serves its resources to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from orch.components.accounts import Account
from orch.components.cloud.candidates import CloudCandidate
from orch.components.cloud.neocloud import NeocloudBackend
from orch.components.cloud.planner import AnyPlanner
from orch.components.cloud.rest.client import account_of_key
from orch.components.cloud_errors import CategoryErrors
from orch.components.explain import Explained, Traits
from orch.components.lambda_ import clusters
from orch.components.lambda_.account.client import FILE_SYSTEM, GONE_S, LambdaClient
from orch.components.lambda_.account.client import INSTANCE as INSTANCES
from orch.components.lambda_.account.errors import ERRORS
from orch.components.lambda_.account.facts import FoundFileSystem, LambdaFacts, Stock
from orch.components.lambda_.account.login import KEY, open_login
from orch.components.lambda_.candidates import LambdaCandidate, candidates, mounted, placed
from orch.components.lambda_.clusters import Member
from orch.components.lambda_.explain import EXPLAINED, INSTANCE, PACKAGE, traits
from orch.components.lambda_.plan import LambdaPlan
from orch.components.lambda_.planner import LambdaPlanner, needed_lookups
from orch.components.marks.marked import MarkedResource, Survey
from orch.components.marks.orphans import StackSnapshot
from orch.components.request import PlanRequest
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.lambda_ import LambdaSettings
from orch.spec.models.ssh import SshConfig


class LambdaBackend(NeocloudBackend[LambdaFacts, LambdaPlan]):
    name: ClassVar[str] = "lambda"
    settings: ClassVar[type[BackendSettings]] = LambdaSettings
    packages: ClassVar[tuple[str, ...]] = (f"{PACKAGE}:",)
    key_variables: ClassVar[tuple[str, ...]] = (KEY,)
    explained: ClassVar[Explained] = EXPLAINED
    planner: ClassVar[type[AnyPlanner] | None] = LambdaPlanner
    node_type: ClassVar[str] = INSTANCE
    find: ClassVar[Callable[..., Sequence[CloudCandidate]]] = staticmethod(candidates)
    errors: ClassVar[CategoryErrors] = ERRORS
    image_pins: ClassVar[tuple[str, ...]] = ("image", "image_of", "image_region")

    def client(self, session: Any) -> LambdaClient:
        """Return the client of a login, or of a rehearsal's session, which sets its pace."""
        return LambdaClient(session, **getattr(session, "pace", {}))

    def open_session(self, settings: LambdaSettings) -> Any:
        return open_login(settings)

    def settle(self, request: PlanRequest, candidates: Sequence[CloudCandidate]) -> Sequence[CloudCandidate]:
        """The regions that the account has capacity in for them, in the order to try."""
        places = cast("Sequence[LambdaCandidate]", candidates)
        if places[0].listed:
            return places
        there: tuple[FoundFileSystem, ...] = ()
        if mounted(request.fleet):
            there = request.once((self.name, "file systems"), self.connected(request).file_systems)
        stock = self._stock(request)
        room = any(
            each.type.name in stock and each.region in stock[each.type.name].regions for each in places
        )
        known = None if room else request.once((self.name, "regions"), self.connected(request).regions)
        return placed(
            request.fleet,
            self.settings_of(request),
            places,
            stock=stock,
            file_systems=there,
            regions=known,
        )

    def _stock(self, request: PlanRequest) -> Stock:
        return request.once((self.name, "stock"), self.connected(request).stock)

    def hosts(self, request: PlanRequest) -> SshConfig | None:
        name = clusters.named_cluster(request.fleet)
        if name is None:
            return None
        client = self.connected(request)
        by_id, rows = client.of_cluster(name), client.all(INSTANCES)
        return clusters.hosts_of(request.fleet, list(map(Member.of, by_id)), list(map(Member.of, rows)))

    def facts(self, request: PlanRequest, candidate: CloudCandidate) -> LambdaFacts:
        place = cast("LambdaCandidate", candidate)
        lookups = needed_lookups(request.fleet, place, self.prior(request))
        storage = place.storage_gib
        if storage is None and (known := self._stock(request).get(place.type.name)) is not None:
            storage = known.storage_gib
        facts = self.connected(request).facts(lookups)
        return replace(facts, storage_gib=storage, room=place.room)

    def traits(self, request: PlanRequest, candidate: CloudCandidate, plan: LambdaPlan) -> Traits:
        return traits(plan)

    def account(self, settings: Iterable[BackendSettings], session: Callable[[str], Any]) -> Account:
        """Without an id: Lambda's API has no call that tells whose a key is."""
        return account_of_key(self.entry(settings), session(self.name), open_login, KEY)

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        return super().survey(project, state).joined(self.client(self.asked_by(state)).data_of(project))

    def delete_data(self, resources: Sequence[MarkedResource], state: StackSnapshot) -> Iterable[str]:
        client = self.client(self.asked_by(state))
        for each in resources:
            client.remove(FILE_SYSTEM, each.id, for_s=GONE_S)
            yield each.name
