"""The base class of cloud backends: from a request to a deployment of node groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from orch.catalog.load import catalog
from orch.components.base import Backend, Facts
from orch.components.cloud.candidates import CloudCandidate, moves, price_in
from orch.components.cloud.evacuation import no_other_zone, not_split
from orch.components.cloud.node_groups import (
    SPREADS,
    NodeGroup,
    OtherGroups,
    Planned,
    free_number,
    joined,
    keep_and_missing,
    leaving_aside,
    may_spread,
    moved_on,
    node_groups,
    prior_of_group,
    reasons,
    spreads,
    with_missing,
    with_unfinished,
)
from orch.components.cloud.plan import CloudPlan
from orch.components.cloud.planner import AnyPlanner, PlanContext
from orch.components.cloud_errors import CloudError
from orch.components.deployment import Deployment, PricedNodes, Queue, SharedNetworks
from orch.components.init_steps import scripts
from orch.components.marks.orphans import StackSnapshot
from orch.components.node_count import all_there, live_indices, own_pins
from orch.components.request import CloudAnswer, PlanRequest, PriorState
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet

# What says where a fleet is and what it is made from, apart from how far it got.
PLACE = (
    "backend",
    "project",
    "scope",
    "region",
    "zone",
    "instance_type",
    "spot",
    "network",
    "ib_network",
    SPREADS,
)


Plan = TypeVar("Plan", bound=CloudPlan)


class CloudBackend(Backend[CloudCandidate, Facts, Plan]):
    """A backend that rents machines.

    `planner`: what plans its fleets, unless it overrides `plan`. `node_type`: the type of a node's resource.
    `image_pins`: pins of machine images, which orch.lock keeps.
    """

    planner: ClassVar[type[AnyPlanner] | None] = None
    node_type: ClassVar[str]
    image_pins: ClassVar[tuple[str, ...]]

    @abstractmethod
    def open_session(self, settings: Any) -> Any:
        """A session of the user's own account."""

    def session(self, request: PlanRequest) -> Any:
        """The session of the request (a rehearsal's), else one of the user's own account."""

        def begin() -> Any:
            return request.session(self.name) or self.open_session(self.settings_of(request))

        return request.once((self.name, "session"), begin)

    @abstractmethod
    def cloud_error(self, text: str) -> CloudError | None:
        """The cloud's error in a message of its provider; None when there is none."""

    def plan(self, request: PlanRequest, candidate: CloudCandidate, facts: Facts) -> Plan:
        if self.planner is None:
            raise TypeError(f"{self.name} has no planner")
        context = self.plan_context(request)
        return self.planner(request.fleet, candidate, facts, self.prior(request), context).plan()

    def plan_context(self, request: PlanRequest) -> PlanContext[Any]:
        """Return what a plan is made of besides the fleet."""
        return PlanContext(
            self.settings_of(request),
            catalog(),
            request.scope,
            request.tags,
            scripts(request.fleet, request.folder),
            request.indices,
            request.other_groups or OtherGroups(),
            request.created,
        )

    def with_nodes(self, plan: Plan, names: Collection[str]) -> Plan:
        """The same plan with only the nodes of these names."""
        first, *others = (self.group_with(each, names) for each in plan.node_groups)
        return self.join([first, *(each for each in others if each.nodes)])

    def group_with(self, group: Any, names: Collection[str]) -> Any:
        """One of its node groups with only the nodes of these names."""
        return replace(group, nodes=tuple(node for node in group.nodes if node.name in names))

    def in_network_of(self, first: Plan, group: Plan) -> Plan:
        """A node group in the network of the fleet's first one. Raises PlanErrors where it cannot be."""
        return group

    def join(self, plans: Sequence[Plan]) -> Plan:
        """The plan of a fleet of these node groups. Raises PlanErrors."""
        first, *others = plans
        return joined(first, [self.in_network_of(first, each) for each in others])

    def deployment(self, request: PlanRequest, candidate: CloudCandidate) -> Deployment:
        prior = self.prior(request)
        if not (candidate.kept or candidate.additional):
            return self.deploy(request, candidate, self._plan_at(request, candidate)[0])
        if not may_spread(request.fleet):
            if candidate.zone in request.evacuated and not all_there(request.fleet, prior):
                raise PlanErrors([not_split(request, candidate.zone)])
            return self.deploy(request, candidate, self._plan_at(request, candidate)[0])
        unfinished, evacuated = request.previous.unfinished, request.evacuated
        moved = moved_on(request.fleet, prior, unfinished, evacuated)
        leaving = request.leaving | moved
        request = request.of_nodes(leaving_aside(request.previous, leaving), request.indices)
        groups, missing = keep_and_missing(request.fleet, self.prior(request))
        # Where an interrupted `up` was about to have those that leave binds nobody: there may be no room.
        free = tuple(index for index in missing if index in leaving and index not in moved)
        begun = tuple(index for index in missing if index not in free)
        groups, begun = with_unfinished(groups, begun, unfinished, evacuated)
        missing = tuple(sorted((*begun, *free)))
        if missing and candidate.kept and candidate.zone in request.evacuated:
            candidate = self._other_place(request, candidate)
        plan = self._of_groups(request, candidate, groups, missing, leaving)
        return self.deploy(request, candidate, plan)

    def _other_place(self, request: PlanRequest, kept: CloudCandidate) -> CloudCandidate:
        """The first place for nodes that may not be made where the fleet is. Raises PlanErrors."""
        places = self.more_places(request, kept)
        if not places:
            raise PlanErrors([no_other_zone(request)])
        return self.settle(request, places)[0]

    def _of_groups(
        self,
        request: PlanRequest,
        candidate: CloudCandidate,
        groups: Sequence[NodeGroup],
        missing: tuple[int, ...],
        leaving: Collection[int],
    ) -> Plan:
        """The fleet in its node groups, nodes that are missing at the candidate."""
        prior = self.prior(request)
        places: list[tuple[NodeGroup, CloudCandidate]] = []
        for group in groups:
            place, *_ = self.candidates(request.of_nodes(prior_of_group(group, prior), group.indices))
            if place.kept:
                places.append((group, place))
            else:  # the file does not allow that place any more
                missing = (*missing, *group.indices)
        if missing:
            places = with_missing(places, missing, candidate)
        planned: list[Planned[Plan, Facts]] = []
        for position, (group, place) in enumerate(places):
            later = sum(len(each.indices) for each, _ in places[position + 1 :])
            other_groups = OtherGroups(tuple(planned), later)
            each = self._of_group(request, prior, group, place, other_groups)
            names = tuple(node.name for node in each.plan.nodes if node.index in leaving)
            planned.append(replace(each, plan=replace(each.plan, moved=names)))
        plans = [each.plan for each in planned]
        return plans[0] if len(plans) == 1 else self.join(plans)

    def _of_group(
        self,
        request: PlanRequest,
        prior: PriorState,
        group: NodeGroup,
        candidate: CloudCandidate,
        other_groups: OtherGroups[Plan, Facts],
    ) -> Planned[Plan, Facts]:
        part = request.of_nodes(prior_of_group(group, prior), group.indices, other_groups)
        plan, facts = self._plan_at(part, candidate)
        numbered = replace(plan, number=group.number)
        live = live_indices(self.prior(part)) if candidate.kept else frozenset[int]()
        return Planned(numbered, facts, len(set(group.indices) - live))

    def _plan_at(self, request: PlanRequest, candidate: CloudCandidate) -> tuple[Plan, Facts]:
        facts = self.facts(request, candidate)
        plan = self.plan(request, candidate, facts)
        if plan.layout_unchanged or not candidate.kept:
            return plan, facts
        all_facts = self.facts_of_new_nodes(request, candidate, facts)
        return (plan, facts) if all_facts is facts else (self.plan(request, candidate, all_facts), all_facts)

    def facts_of_new_nodes(self, request: PlanRequest, candidate: CloudCandidate, facts: Facts) -> Facts:
        """The facts for a plan that replaces running nodes: with quotas and all else that new nodes need.

        Returns `facts` itself when it holds all of that already.
        """
        return facts

    def spreads(self, request: PlanRequest, kept: CloudCandidate) -> bool:
        """Whether the fleet can get more node groups."""
        return spreads(request.fleet, self.prior(request))

    def more_places(self, request: PlanRequest, kept: CloudCandidate) -> Sequence[CloudCandidate]:
        """Candidates in the fleet's region for nodes that do not fit where it is, the cheapest first."""
        if not self.spreads(request, kept) or free_number(node_groups(self.prior(request))) is None:
            return ()
        try:
            candidates = self.candidates(request.of_nodes(PriorState(), ()))
        except PlanErrors:
            return ()
        others = (
            each
            for each in candidates
            if each.region == kept.region and not each.same_place(kept) and each.zone not in request.evacuated
        )
        return tuple(replace(each, additional=True) for each in others)

    def stages(
        self, request: PlanRequest, candidate: CloudCandidate, plan: Plan, running: Mapping[int, int]
    ) -> Iterable[tuple[Plan, Queue | None]]:
        """Plans to bring up before the fleet's own, each with the queue to wait for after it.

        `running`: the number of running nodes, by the number of their group.
        """
        return ()

    def shared(self, request: PlanRequest, plan: Plan) -> SharedNetworks | None:
        """The networks that the fleet shares with other fleets."""
        return None

    def makers(self, plan: Plan) -> Mapping[str, str]:
        """The resource that makes each node which is no resource of its own, by the node's name."""
        return {}

    def asked_by(self, state: StackSnapshot) -> Any:
        """The session to look for marks with."""
        return state.session(self.name) or self.open_session(self.entry(state.settings))

    def price(self, instance_type: str, region: str, spot: bool) -> float | None:
        """The catalogue's price of a machine in a region, in US dollars an hour."""
        return price_in(self.name, instance_type, region, spot)

    def classify_error(self, text: str) -> CloudAnswer | None:
        error = self.cloud_error(text)
        return error.answer if error else None

    def deploy(self, request: PlanRequest, candidate: CloudCandidate, plan: Plan) -> Deployment:
        in_place = candidate.kept or candidate.additional
        groups = node_groups(self.prior(request)) if in_place else ()
        return self._deploy(request, candidate, plan, {each.number: len(each.indices) for each in groups})

    def _deploy(
        self, request: PlanRequest, candidate: CloudCandidate, plan: Plan, running: Mapping[int, int]
    ) -> Deployment:
        def only(names: Collection[str], existing: Collection[str]) -> Deployment:
            counts = {
                each.number: sum(node.name in existing for node in each.nodes) for each in plan.node_groups
            }
            return self._deploy(request, candidate, self.with_nodes(plan, names), counts)

        stages = [
            replace(self._one(request, candidate, stage), queue=queue)
            for stage, queue in self.stages(request, candidate, plan, running)
        ]
        return replace(self._one(request, candidate, plan), before=tuple(stages), only=only)

    def new_node(self, plan: Plan) -> Mapping[str, Any]:
        group = plan.node_groups[-1]
        return {
            "cpus": group.cpus,
            "memory_mib": group.memory_mib,
            "arch": group.arch,
            "gpus": dict(group.gpus),
            "blocks": group.blocks,
            "region": group.region,
            "zone": group.zone,
            "instance_type": group.instance_type,
            "price_hourly": group.price,
            "spot": group.spot,
        }

    def _one(self, request: PlanRequest, candidate: CloudCandidate, plan: Plan) -> Deployment:
        # Nodes that move are there until those in their place are.
        whole = request.fleet.gang == "all-or-nothing" or bool(request.leaving)
        return replace(
            super().deploy(request, candidate, plan),
            pins={**plan.pins, **own_pins(request, len(plan.all_nodes))},
            isolated=frozenset() if whole else frozenset({self.node_type}),
            whole=whole,
            findings=tuple(dict.fromkeys(each for group in plan.node_groups for each in group.warnings)),
            reasons=reasons(plan),
            unpriced=plan.unpriced,
            shared=self.shared(request, plan),
            moves=moves(candidate, self.prior(request)),
            makers=self.makers(plan),
            nodes=tuple(node.name for node in plan.all_nodes),
            locked=frozenset(self.image_pins),
            priced=tuple(self._priced(request, group) for group in plan.node_groups),
        )

    def _priced(self, request: PlanRequest, group: CloudPlan) -> PricedNodes:
        reserved = request.fleet.reservation is not None
        return PricedNodes(
            self.name,
            tuple(node.name for node in group.nodes),
            group.instance_type,
            group.zone,
            "reserved" if reserved else "spot" if group.spot else "on-demand",
            group.price,
            int(group.gpus.get("count") or 0),
            str(group.gpus.get("name") or ""),
        )

    def placed(self, request: PlanRequest) -> PriorState:
        """What says where the fleet is and stays; nothing for one that leaves its place as a whole."""
        prior = self.prior(request)
        return PriorState(file_systems=prior.file_systems) if request.leaves_its_place else prior

    def prior(self, request: PlanRequest) -> PriorState:
        """Decisions to keep: pins of the last finished `up`, else those recorded by an interrupted one.

        Images fall back to orch.lock, unless they are to be looked up anew.
        """
        recorded = request.previous
        keys = (*PLACE, *self.image_pins)
        unfinished = {key: recorded.unfinished[key] for key in keys if key in recorded.unfinished}
        begun = PriorState(
            unfinished, file_systems=recorded.file_systems, existing_nodes=recorded.existing_nodes
        )
        previous = recorded if recorded.pins else begun
        pinned = {**recorded.locked, **previous.pins}
        images = {key: value for key, value in pinned.items() if key in self.image_pins}
        rest = {key: value for key, value in previous.pins.items() if key not in self.image_pins}
        return replace(previous, pins=rest if request.consent.upgrade else {**images, **rest})


def regions_of(fleet: Fleet, backend: str) -> tuple[str, ...]:
    """All regions that have an offer for the fleet's types, for looking up its reservation."""
    from orch.catalog.load import catalog
    from orch.catalog.unpriced import types_possibly_unlisted, unlisted_offers
    from orch.offers.query import machine_query

    known = catalog()
    patterns = machine_query(fleet, known).instance_types
    offers = [*known.lists[backend].offers]
    offers += [
        offer for each in types_possibly_unlisted(known, backend) for offer in unlisted_offers(known, each)
    ]
    return tuple(sorted({o.region for o in offers if o.region and (not patterns or o.type.name in patterns)}))
