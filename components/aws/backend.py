"""The backend `aws`: EC2 clusters with EFA.

`gather_facts.py` asks the account, `planner.py` decides (pure).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from orch.catalog.load import catalog as load_catalog
from orch.components.accounts import Account
from orch.components.aws.account import errors, gather_facts, identity, marked, orphans
from orch.components.aws.account.facts import AwsFacts, Reservation, Zone
from orch.components.aws.account.gather_facts import find_room
from orch.components.aws.account.lookups import Lookups, needed_lookups
from orch.components.aws.candidates import candidates, in_written_zones, with_known_zone
from orch.components.aws.explain import EXPLAINED, traits
from orch.components.aws.network import in_network_of
from orch.components.aws.plan import AwsPlan
from orch.components.aws.planner import AwsPlanner
from orch.components.cloud.backend import CloudBackend, regions_of
from orch.components.cloud.candidates import CloudCandidate
from orch.components.cloud.planner import AnyPlanner
from orch.components.cloud_errors import CloudError
from orch.components.deployment import Queue, Room
from orch.components.explain import Explained, Traits
from orch.components.marks.marked import MarkedResource, Survey
from orch.components.marks.orphans import StackSnapshot
from orch.components.request import PlanRequest, PriorState
from orch.offers.match import aws_zone_name
from orch.spec.errors import OrchError
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.base import BackendSettings

if TYPE_CHECKING:
    from orch.components.volumes import VolumeBackend

PINNED_IMAGES = tuple(
    f"{image}{part}" for image in ("image", "bastion_image") for part in ("", "_name", "_of", "_region")
)

_PROVIDER = "pulumi:providers:aws"


class AwsBackend(CloudBackend[AwsFacts, AwsPlan]):
    name: ClassVar[str] = "aws"
    settings: ClassVar[type[BackendSettings]] = AwsSettings
    packages: ClassVar[tuple[str, ...]] = ("aws:",)
    key_variables: ClassVar[tuple[str, ...]] = (
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    )
    tells_room: ClassVar[bool] = True
    explained: ClassVar[Explained] = EXPLAINED
    planner: ClassVar[type[AnyPlanner] | None] = AwsPlanner
    node_type: ClassVar[str] = "aws:ec2/instance:Instance"
    image_pins: ClassVar[tuple[str, ...]] = PINNED_IMAGES

    def open_session(self, settings: AwsSettings) -> gather_facts.Session:
        return gather_facts.open_session(settings)

    def candidates(self, request: PlanRequest) -> Sequence[CloudCandidate]:
        """Asks for what names and ids mean in this account."""
        return candidates(
            request.fleet,
            self.settings_of(request),
            load_catalog(),
            previous=self.placed(request),
            zones=self._named_zones(request),
            reservation=self._reservation(request),
            other_backends=request.backends,
        )

    def listed(self, fleet: Fleet, settings: AwsSettings) -> Sequence[CloudCandidate]:
        return candidates(fleet, settings, load_catalog())

    def settle(self, request: PlanRequest, candidates: Sequence[CloudCandidate]) -> Sequence[CloudCandidate]:
        """The same with the zone of the first one known, by asking the account: each region once."""
        if candidates[0].listed:
            return candidates
        fleet, settings = request.fleet, self.settings_of(request)

        def ask(region: str, types: Collection[str]) -> Mapping[str, Sequence[str]]:
            try:
                return gather_facts.offered(self.session(request), region, types, settings.endpoint_url)
            except gather_facts.CloudRefused as refusal:
                if refusal.error is None or not errors.is_of_region(refusal.error):
                    raise
                request.refused[f"{self.name} in {region}"] = refusal
                return {}

        def offered(region: str, types: Collection[str]) -> Mapping[str, Sequence[str]]:
            return request.once((self.name, "offered", region, frozenset(types)), lambda: ask(region, types))

        written = in_written_zones(fleet, settings, load_catalog(), self._named_zones(request))

        def fits(each: CloudCandidate) -> bool:
            return written(each) and each.zone not in request.evacuated

        return with_known_zone(fleet, candidates, offered, fits)

    def facts(self, request: PlanRequest, candidate: CloudCandidate) -> AwsFacts:
        return self._ask(request, self._lookups(request, candidate))

    def facts_of_new_nodes(
        self, request: PlanRequest, candidate: CloudCandidate, facts: AwsFacts
    ) -> AwsFacts:
        lookups = self._lookups(request, candidate)
        return facts if lookups.quotas else self._ask(request, replace(lookups, quotas=True))

    def _lookups(self, request: PlanRequest, candidate: CloudCandidate) -> Lookups:
        settings, prior = self.settings_of(request), self.prior(request)
        return needed_lookups(
            request.fleet, settings, candidate, prior, request.scope, indices=request.indices
        )

    def _ask(self, request: PlanRequest, lookups: Lookups) -> AwsFacts:
        return gather_facts.ask(self.session(request), lookups, self.settings_of(request).endpoint_url)

    def group_with(self, group: AwsPlan, names: Collection[str]) -> AwsPlan:
        nodes = tuple(node for node in group.nodes if node.name in names)
        capacity = group.capacity
        if capacity.reserved_nodes is not None:
            capacity = replace(capacity, reserved_nodes=len(nodes) or None)
        return replace(group, nodes=nodes, capacity=capacity)

    def in_network_of(self, first: AwsPlan, group: AwsPlan) -> AwsPlan:
        return in_network_of(first, group)

    def stages(
        self, request: PlanRequest, candidate: CloudCandidate, plan: AwsPlan, running: Mapping[int, int]
    ) -> Iterable[tuple[AwsPlan, Queue | None]]:
        """EC2 shrinks a reservation no further than to what runs in it, and the engine deletes instances
        last."""
        first, *others = (with_room(each, running.get(each.number, 0)) for each in plan.node_groups)
        larger = replace(first, others=tuple(others))
        return [(larger, None)] if larger != plan else []

    def new_node(self, plan: AwsPlan) -> Mapping[str, Any]:
        return {**super().new_node(plan), "reservation": plan.node_groups[-1].capacity.id}

    def traits(self, request: PlanRequest, candidate: CloudCandidate, plan: AwsPlan) -> Traits:
        return traits(request.fleet, plan)

    def zone_names(self, request: PlanRequest, region: str) -> Mapping[str, str]:
        """By names of this account, and by ids."""
        endpoint = self.settings_of(request).endpoint_url
        zones = gather_facts.zones(self.session(request), [region], endpoint).get(region, ())
        return {name.lower(): each.id for each in zones for name in (each.name, each.id)}

    def room(self, request: PlanRequest, count: int, mark: str) -> Room | None:
        """Reserved for a moment; capacity of the spot market cannot be."""
        places = [each for each in self.candidates(request) if each.zone not in request.evacuated]
        if not places or places[0].spot:
            return None
        known = [each for place in places for each in self._known(request, place)]
        endpoint = self.settings_of(request).endpoint_url
        return find_room(self.session(request), endpoint, known, count, mark)

    def _known(self, request: PlanRequest, place: CloudCandidate) -> Sequence[CloudCandidate]:
        try:
            return self.settle(request, (place,))
        except PlanErrors:
            return ()

    def refused_region(self, error: OrchError, candidate: CloudCandidate) -> str | None:
        of_region = (
            isinstance(error, gather_facts.CloudRefused)
            and error.error is not None
            and errors.is_of_region(error.error)
        )
        return candidate.region if of_region else None

    def volumes(self) -> VolumeBackend:
        from orch.components.aws.volumes import AwsVolumes

        return AwsVolumes()

    def cloud_error(self, text: str) -> CloudError | None:
        return errors.read(text)

    def tunnel_environment(self, settings: BackendSettings) -> Mapping[str, str]:
        from orch.components.aws.fleet_state import tunnel_environment

        return tunnel_environment(settings) if isinstance(settings, AwsSettings) else {}

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        """In the regions that orch.yml names, all where it names none, and those of the state."""
        settings, session = self.entry(state.settings), self.asked_by(state)
        regions = {str(each.inputs["region"]) for each in state.recorded if each.type == _PROVIDER}
        if not state.narrow and any(isinstance(each, AwsSettings) for each in state.settings):
            regions |= set(settings.regions or gather_facts.enabled(session, settings.endpoint_url))
        look = marked.machines if state.narrow else marked.survey
        return look(session, sorted(regions), settings.endpoint_url, project, self.price)

    def delete_orphans(self, snapshot: StackSnapshot) -> Iterable[str]:
        return orphans.delete_orphans(snapshot)

    def delete_data(self, resources: Sequence[MarkedResource], state: StackSnapshot) -> Iterable[str]:
        settings = self.entry(state.settings)
        return marked.delete_data(self.asked_by(state), settings.endpoint_url, resources)

    def ended_nodes(
        self, previous: PriorState, settings: Iterable[BackendSettings], session: Callable[[str], Any]
    ) -> frozenset[str]:
        own: AwsSettings = self.entry(settings)
        machines = {node.machine: node for node in previous.nodes if node.machine and node.region}
        account = session(self.name) or self.open_session(own)
        ended = set[str]()
        for region in sorted({node.region or "" for node in machines.values()}):
            ids = [each for each, node in machines.items() if node.region == region]
            template = f"orch-{previous.nodes[0].name.rpartition('-')[0]}-{previous.pins.get('scope', '')}"
            ended |= gather_facts.ended_by_themselves(account, region, template, ids, own.endpoint_url)
        return frozenset(machines[each].name for each in ended)

    def account(self, settings: Iterable[BackendSettings], session: Callable[[str], Any]) -> Account:
        return identity.account(self.entry(settings), session(self.name))

    def _named_zones(self, request: PlanRequest) -> Mapping[str, Sequence[Zone]]:
        """The zones of each region of which the file writes a zone by its name (`us-east-1a`)."""
        fleet, settings = request.fleet, self.settings_of(request)
        named = [place[0] for zone in fleet.availability_zones if (place := aws_zone_name(zone)) is not None]
        if not named:
            return {}
        regions = fleet.regions or settings.regions or regions_of(fleet, self.name)
        searched = [region for region in dict.fromkeys(named) if region in regions or not regions]
        return request.once(
            (self.name, "zones"),
            lambda: gather_facts.zones(self.session(request), searched, settings.endpoint_url),
        )

    def _reservation(self, request: PlanRequest) -> Reservation | None:
        fleet, settings = request.fleet, self.settings_of(request)
        if fleet.reservation is None:
            return None
        regions = fleet.regions or settings.regions or regions_of(fleet, self.name)
        reservation = None
        for region in regions:
            try:
                reservation = gather_facts.reservation(
                    self.session(request), fleet.reservation, (region,), settings.endpoint_url
                )
            except gather_facts.CloudRefused as refusal:
                if len(regions) == 1 or refusal.error is None or not errors.is_of_region(refusal.error):
                    raise
                request.refused[f"{self.name} in {region}"] = refusal
            if reservation is not None:
                break
        if reservation is None:
            raise PlanErrors([_no_reservation(fleet, regions)])
        return reservation


def with_room(plan: AwsPlan, running: int) -> AwsPlan:
    """The same with a reservation, where it has one, for no fewer nodes than run in it."""
    reserved = plan.capacity.reserved_nodes
    if reserved is None or reserved >= running:
        return plan
    return replace(plan, capacity=replace(plan.capacity, reserved_nodes=running))


def _no_reservation(fleet: Fleet, regions: Sequence[str]) -> Finding:
    return Finding(
        "ORCH322",
        "reservation",
        f"the account has no reservation {fleet.reservation} in {', '.join(regions)}",
        hint="name its region in `regions`; ids are listed by `aws ec2 describe-capacity-reservations`",
    )
