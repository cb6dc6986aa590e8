"""The backend `runpod`: Instant Clusters and pods, which are made with a run and go with it.

`account/` asks the account, `planner.py` decides (pure), `plugin.py` serves its resources to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from orch.catalog.load import catalog as load_catalog
from orch.components.accounts import Account
from orch.components.base import Backend
from orch.components.cloud.quotas import if_readable
from orch.components.cloud.rest.client import account_of_key
from orch.components.deployment import Deployment, PricedNodes
from orch.components.explain import Explained, Traits
from orch.components.marks.marked import MarkedResource, Survey
from orch.components.marks.orphans import StackSnapshot, delete_named, survey_named
from orch.components.request import CloudAnswer, PlanRequest
from orch.components.runpod.account import errors
from orch.components.runpod.account.client import (
    CLUSTER,
    KEY,
    POD,
    VOLUME,
    Login,
    Money,
    RunpodClient,
    open_login,
)
from orch.components.runpod.account.facts import RunpodFacts
from orch.components.runpod.candidates import (
    RunpodCandidate,
    candidates,
    in_data_centers,
    names_centers,
    unknown_centers,
)
from orch.components.runpod.explain import EXPLAINED, PACKAGE, traits
from orch.components.runpod.plan import PodGroup, RunpodPlan
from orch.components.runpod.planner import Context, only, plan, recorded_groups
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.runpod import RunpodSettings

if TYPE_CHECKING:
    from orch.components.runpod.volumes import RunpodVolumes


class RunpodBackend(Backend[RunpodCandidate, RunpodFacts, RunpodPlan]):
    name: ClassVar[str] = "runpod"
    settings: ClassVar[type[BackendSettings]] = RunpodSettings
    packages: ClassVar[tuple[str, ...]] = (f"{PACKAGE}:",)
    key_variables: ClassVar[tuple[str, ...]] = (KEY,)
    explained: ClassVar[Explained] = EXPLAINED

    def login(self, request: PlanRequest) -> Login:
        """The login of the request (a rehearsal's), else that of the user's own account."""

        def begin() -> Login:
            return request.session(self.name) or open_login(self.settings_of(request))

        return request.once((self.name, "login"), begin)

    def _client(self, request: PlanRequest) -> RunpodClient:
        return request.once((self.name, "client"), lambda: RunpodClient(self.login(request)))

    def candidates(self, request: PlanRequest) -> Sequence[RunpodCandidate]:
        """The types that fit; they are in no place before RunPod was asked (`settle`)."""
        fleet, settings = request.fleet, self.settings_of(request)
        found = candidates(fleet, settings, load_catalog(), other_backends=request.backends)
        # What is up stays, wherever more goes.
        kept = bool(recorded_groups(request.previous))
        return tuple(replace(each, kept=kept) for each in found)

    def listed(self, fleet: Fleet, settings: RunpodSettings) -> Sequence[RunpodCandidate]:
        return candidates(fleet, settings, load_catalog())

    def settle(
        self, request: PlanRequest, candidates: Sequence[RunpodCandidate]
    ) -> Sequence[RunpodCandidate]:
        """The data centers of each type, those with the most stock first; where pods are up already the
        first one, for the others are asked for when it has no room (`more_places`)."""
        if candidates[0].listed:
            return candidates
        places = self._places(request, candidates)
        return places[:1] if candidates[0].kept else places

    def _places(
        self, request: PlanRequest, candidates: Sequence[RunpodCandidate]
    ) -> tuple[RunpodCandidate, ...]:
        client, cluster = self._client(request), request.fleet.placement == "cluster"
        if names_centers(request.fleet):
            known = request.once((self.name, "centers"), client.volume_types)
            if wrong := list(unknown_centers(request.fleet, known)):
                raise PlanErrors(wrong)
        counts = sorted({each.type.gpu_count for each in candidates})
        product = "CLUSTER" if cluster else "POD"
        stock = {
            count: request.once((self.name, "stock", count), lambda count=count: client.stock(product, count))
            for count in counts
        }
        ask = client.cluster_prices if cluster else client.pod_prices
        prices = request.once((self.name, "prices"), ask)
        return in_data_centers(
            request.fleet, self.settings_of(request), candidates, stock, prices, volumes=request.volumes
        )

    def more_places(self, request: PlanRequest, kept: RunpodCandidate) -> Sequence[RunpodCandidate]:
        """The other places for what is to be made: no two runs' pods need to be in one."""
        return self._places(request, self.candidates(request))[1:]

    def facts(self, request: PlanRequest, candidate: RunpodCandidate) -> RunpodFacts:
        client = self._client(request)
        there = frozenset[str]()
        if recorded_groups(request.previous):
            rows = [row for kind in (POD, CLUSTER) for row in client.all(kind)]
            there = frozenset(str(row["name"]) for row in rows)

        def ask() -> tuple[Money | None, tuple[str, ...]]:
            unread: list[str] = []
            return if_readable(unread, client.money), tuple(unread)

        known, unread = request.once((self.name, "money"), ask)
        return RunpodFacts(known, there, unread)

    def plan(self, request: PlanRequest, candidate: RunpodCandidate, facts: RunpodFacts) -> RunpodPlan:
        context = Context(request.scope, request.image, request.made_for, request.volumes)
        return plan(request.fleet, candidate, facts, request.previous, context)

    def deploy(self, request: PlanRequest, candidate: RunpodCandidate, plan: RunpodPlan) -> Deployment:
        def some(names: Collection[str], existing: Collection[str]) -> Deployment:
            return self.deploy(request, candidate, only(plan, frozenset(names)))

        return replace(
            super().deploy(request, candidate, plan),
            whole=True,
            findings=plan.warnings,
            unpriced=plan.unpriced,
            makers=plan.makers,
            only=some,
            priced=tuple(_priced(plan.fleet, group) for group in plan.groups),
        )

    def new_node(self, plan: RunpodPlan) -> Mapping[str, Any]:
        return {
            "cpus": plan.cpus,
            "memory_mib": plan.memory_mib,
            "arch": "x86",
            "gpus": dict(plan.gpus),
            "disk_mib": plan.disk_gb * 1024,
            "region": plan.center or None,
            "instance_type": plan.instance_type,
            "price_hourly": plan.price,
            "runtime": "process",
        }

    def traits(self, request: PlanRequest, candidate: RunpodCandidate, plan: RunpodPlan) -> Traits:
        return traits(plan)

    def classify_error(self, text: str) -> CloudAnswer | None:
        error = errors.ERRORS.read(text)
        return error.answer if error else None

    def _asked_by(self, state: StackSnapshot) -> RunpodClient:
        return RunpodClient(state.session(self.name) or open_login(self.entry(state.settings)))

    def volumes(self) -> RunpodVolumes:
        from orch.components.runpod.volumes import RunpodVolumes

        return RunpodVolumes()

    def account(self, settings: Iterable[BackendSettings], session: Callable[[str], Any]) -> Account:
        own, login = self.entry(settings), session(self.name)
        found = account_of_key(own, login, open_login, KEY)
        return replace(found, id=RunpodClient(login or open_login(own)).user())

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        from orch.components.runpod.volumes import of_project

        client = self._asked_by(state)
        found = survey_named(self.name, project, client.removable())
        return found.joined(Survey(of_project(client, project)))

    def delete_data(self, resources: Sequence[MarkedResource], state: StackSnapshot) -> Iterable[str]:
        client = self._asked_by(state)
        for each in resources:
            client.delete(VOLUME, each.id)
            yield f"{each.name} ({each.id})"

    def delete_orphans(self, snapshot: StackSnapshot) -> Iterable[str]:
        return delete_named(snapshot, self.packages[0], lambda: self._asked_by(snapshot).removable())


def _priced(fleet: str, group: PodGroup) -> PricedNodes:
    return PricedNodes(
        "runpod",
        tuple(node.name for node in group.nodes(fleet)),
        group.instance_type,
        group.center,
        "on-demand",
        group.price,
        int(group.gpus.get("count") or 0),
        str(group.gpus.get("name") or ""),
    )
